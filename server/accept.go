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

// ignitionType is the media type that Ignition names in Accept, with a version as its parameter.
const ignitionType = "application/vnd.coreos.ignition+json"

// newestMinor is the newest version 3.x that OpenShift's server speaks. A client that reads 3.6 gets it where a
// configuration needs it.
const newestMinor = 5

// wish is the version that a client gets. newest is true if the client reads later versions too.
type wish struct {
	version semver.Version
	newest  bool
}

// negotiate finds the version to speak in an Accept header, by the rules of OpenShift's server (pkg/server/api.go).
// That is the media type of Ignition with the highest q whose version is spoken. Without any version it is 2.2, since
// clients before Ignition 2 did not send one. The error is for a client that only reads versions that are not spoken.
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
