// SPDX-License-Identifier: Apache-2.0

package drain

// PodServer is podServer for the examples.
var PodServer = podServer
