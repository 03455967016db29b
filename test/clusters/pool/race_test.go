// SPDX-License-Identifier: Apache-2.0

//go:build race

package pool

// raceDetector says that the controller is to be built with what the tests are built with.
const raceDetector = true
