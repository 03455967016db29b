// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
)

// splitArguments splits a command line at blanks outside double quotes, and keeps the quotes.
func splitArguments(line string) []string {
	quoted := false
	return strings.FieldsFunc(line, func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return !quoted && (r == ' ' || r == '\t' || r == '\n')
	})
}

// kernelArguments are arguments in their order.
type kernelArguments []string

// places are where the arguments with a key are.
func (k *kernelArguments) places(key string) []int {
	var at []int
	for i, argument := range *k {
		if name, _, _ := strings.Cut(argument, "="); name == key {
			at = append(at, i)
		}
	}
	return at
}

// find is where the argument KEY=VALUE is among places, or -1.
func (k *kernelArguments) find(places []int, argument string) int {
	for _, at := range places {
		if (*k)[at] == argument {
			return at
		}
	}
	return -1
}

// remove removes KEY, of which there has to be one value, or KEY=VALUE.
func (k *kernelArguments) remove(argument string) error {
	key, _, valued := strings.Cut(argument, "=")
	places := k.places(key)
	var at int
	switch {
	case len(places) == 0:
		return original("No key '%s' found", key)
	case valued:
		if at = k.find(places, argument); at < 0 {
			return original("No karg '%s' found", argument)
		}
	case len(places) > 1:
		return original("Multiple values for key '%s' found", key)
	default:
		at = places[0]
	}
	*k = slices.Delete(*k, at, at+1)
	return nil
}

// replace gives KEY another value: KEY=NEW where there is one, KEY=OLD=NEW where there may be several.
func (k *kernelArguments) replace(argument string) error {
	key, value, _ := strings.Cut(argument, "=")
	places := k.places(key)
	if len(places) == 0 {
		return original("No key '%s' found", key)
	}
	at := places[0]
	if before, after, both := strings.Cut(value, "="); both {
		if at = k.find(places, key+"="+before); at < 0 {
			return original("No karg '%s=%s' found", key, before)
		}
		value = after
	} else if len(places) > 1 {
		return original("Multiple values for key '%s' found", key)
	}
	(*k)[at] = key
	if value != "" {
		(*k)[at] += "=" + value
	}
	return nil
}

// patch is what one call of kargs asks for.
type patch struct {
	deleted, replaced, added, ifMissing, ifPresent []string
}

// apply applies the patch in rpm-ostree's order. Whether something is missing or present is asked of what was there
// before: the arguments as rpm-ostree splits them, at every blank.
func (p patch) apply(existing string) (arguments []string, changed bool, err error) {
	k := kernelArguments(splitArguments(existing))
	before := strings.Split(existing, " ")
	for _, argument := range p.deleted {
		if err := k.remove(argument); err != nil {
			return nil, false, err
		}
		changed = true
	}
	for _, argument := range p.replaced {
		if err := k.replace(argument); err != nil {
			return nil, false, err
		}
		changed = true
	}
	k = append(k, p.added...)
	changed = changed || len(p.added) > 0
	for _, argument := range p.ifMissing {
		if !slices.Contains(before, argument) {
			k, changed = append(k, argument), true
		}
	}
	for _, argument := range p.ifPresent {
		if slices.Contains(before, argument) {
			if err := k.remove(argument); err != nil {
				return nil, false, err
			}
			changed = true
		}
	}
	return k, changed, nil
}
