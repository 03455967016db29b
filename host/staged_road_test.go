// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"testing"

	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/transaction"
)

func TestStagedRoadIsForRPMOSTreeWhereDeploymentsCannotBeSwitched(t *testing.T) {
	cannot := func(reason string) error {
		return fmt.Errorf("checking: %w", &ostree.Unsupported{Reason: reason, Detail: "because of " + reason})
	}
	for _, c := range []struct {
		os        OS
		supported error
		want      transaction.Road
	}{
		{OSRpmOstree, nil, transaction.RoadSwitch},
		{OSBootc, nil, transaction.RoadSwitch},
		{OSRpmOstree, cannot(ostree.TooOld), transaction.RoadStaged},
		{OSRpmOstree, cannot(ostree.Zipl), transaction.RoadStaged},
		{OSRpmOstree, cannot(ostree.NoBootLink), transaction.RoadStaged},
		{OSRpmOstree, cannot(ostree.TransientEtc), ""},
		{OSRpmOstree, cannot(ostree.NotOSTree), ""},
		{OSRpmOstree, errors.New("no answer"), ""},
		{OSBootc, cannot(ostree.TooOld), ""},
		{OSOstree, cannot(ostree.TooOld), ""},
	} {
		road, why, err := chooseBootRoad(c.os, c.supported)
		if road != c.want || (err != nil) != (c.want == "") || (why != "") != (road == transaction.RoadStaged) {
			t.Errorf("%s, %v: %q, %q, %v", c.os, c.supported, road, why, err)
		}
	}
}
