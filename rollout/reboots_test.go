// SPDX-License-Identifier: Apache-2.0

package rollout

import "testing"

// Which nodes that want a reboot may begin, and what the others wait for.
func TestRebootsAreRolledOut(t *testing.T) {
	runTable(t, "reboots.txt")
}

// What people order, and what a policy leaves to people.
func TestPeopleOrderReboots(t *testing.T) {
	runTable(t, "reboots-people.txt")
}

// What is wrong with what a policy says of reboots.
func TestMistakesAboutRebootsAreNamed(t *testing.T) {
	runTable(t, "reboots-wrong.txt")
}
