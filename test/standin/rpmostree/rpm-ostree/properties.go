// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"maps"
	"reflect"
	"sync"

	"github.com/godbus/dbus/v5"
)

const propertiesInterface = "org.freedesktop.DBus.Properties"

// properties are those of one interface of an object. The library's own merge a new map into the old one, whose keys
// would never go.
type properties struct {
	bus   *dbus.Conn
	path  dbus.ObjectPath
	iface string

	mu     sync.Mutex
	values map[string]dbus.Variant
}

// set sets properties and tells the bus which of them have changed.
func (p *properties) set(values map[string]any) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	changed := map[string]dbus.Variant{}
	for name, value := range values {
		if !reflect.DeepEqual(p.values[name].Value(), value) {
			changed[name] = dbus.MakeVariant(value)
		}
	}
	if len(changed) == 0 {
		return nil
	}
	maps.Copy(p.values, changed)
	return p.bus.Emit(p.path, propertiesInterface+".PropertiesChanged", p.iface, changed, []string{})
}

// Get gives one property.
func (p *properties) Get(_, name string) (dbus.Variant, *dbus.Error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	value, ok := p.values[name]
	if !ok {
		return value, dbus.NewError("org.freedesktop.DBus.Error.InvalidArgs", []any{"No such property “" + name + "”"})
	}
	return value, nil
}

// GetAll gives all of them.
func (p *properties) GetAll(string) (map[string]dbus.Variant, *dbus.Error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.values), nil
}

// Set sets none: they are the daemon's.
func (*properties) Set(_, name string, _ dbus.Variant) *dbus.Error {
	return failed(errors.New("the property " + name + " is read-only"))
}
