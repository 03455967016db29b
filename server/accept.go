// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"fmt"
	"mime"
	"slices"
	"strconv"
	"strings"

	"github.com/coreos/go-semver/semver"

	"github.com/noderefit/noderefit/machineconfig"
)

// ignitionType is what Ignition says in Accept that it reads, with a version as its parameter.
const ignitionType = "application/vnd.coreos.ignition+json"

// The newest version that OpenShift's server speaks; 3.6 is spoken to a client that reads it where a configuration
// needs it.
const newestMinor = 5

// wish is the version that a client is given, and whether it reads later ones too.
type wish struct {
	version semver.Version
	newest  bool
}

// negotiate finds in an Accept header the version to speak, by the rules of OpenShift's server (pkg/server/api.go): the
// media type of Ignition with the highest q that has a version which is spoken; 2.2 where none has any version, as the
// clients did not say so before Ignition 2. The error is of a client that reads only what is not spoken.
func negotiate(accept string) (wish, error) {
	type offer struct {
		version *semver.Version
		q       float64
	}
	var offers []offer
	for part := range strings.SplitSeq(accept, ",") {
		kind, parameters, err := mime.ParseMediaType(part)
		if err != nil || kind != ignitionType {
			continue
		}
		o := offer{q: 1}
		if text, there := parameters["q"]; there {
			if o.q, err = strconv.ParseFloat(text, 64); err != nil || o.q <= 0 || o.q > 1 {
				continue
			}
		}
		if o.version, err = semver.NewVersion(parameters["version"]); err == nil {
			offers = append(offers, o)
		}
	}
	slices.SortStableFunc(offers, func(a, b offer) int { return cmp.Compare(b.q, a.q) })
	for _, o := range offers {
		switch v := o.version; {
		case v.Major == 2 && v.Minor >= 2:
			return wish{version: machineconfig.Ignition2}, nil
		case v.Major == 3:
			minor := min(v.Minor, newestMinor)
			return wish{semver.Version{Major: 3, Minor: minor}, v.Minor > newestMinor}, nil
		}
	}
	if len(offers) > 0 {
		return wish{}, fmt.Errorf("reading Accept: Ignition %s is not supported; 2.2 and 3.0 to 3.%d are",
			offers[0].version, newestMinor)
	}
	return wish{version: machineconfig.Ignition2}, nil
}
