// SPDX-License-Identifier: Apache-2.0

package main

import "fmt"

// words are an error as the original says it: with a capital, and sometimes a full stop.
type words string

func (w words) Error() string { return string(w) }

// original is an error in the words of rpm-ostree, or of ostree.
func original(format string, args ...any) error { return words(fmt.Sprintf(format, args...)) }

// guess is an error of which it is known that there is one, and not what it says.
func guess(format string, args ...any) error { return words(fmt.Sprintf(format, args...)) }
