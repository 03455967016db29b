// SPDX-License-Identifier: Apache-2.0

//go:build !race

package pool

// walks is how many rollouts are made up.
const walks = 10_000
