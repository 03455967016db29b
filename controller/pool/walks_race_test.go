// SPDX-License-Identifier: Apache-2.0

//go:build race

package pool

// walks is how many rollouts are made up under the race detector, which has nothing to find in a pure decision.
const walks = 200
