// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"os"

	"sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/values"
)

// valuesIn returns where a configuration's values come from: a file, where one is named, and the host at root.
func valuesIn(file, root string) machineconfig.Resolve {
	return func(open []values.Placeholder) (map[string]string, error) {
		given := map[string]string{}
		if file != "" {
			data, err := os.ReadFile(file)
			if err != nil {
				return nil, fmt.Errorf("reading values: %w", err)
			}
			if err := yaml.UnmarshalStrict(data, &given); err != nil {
				return nil, fmt.Errorf("reading values: %s: a map of keys and texts: %w", file, err)
			}
		}
		var keys []string
		for _, p := range open {
			keys = append(keys, p.Key)
		}
		host, err := os.OpenRoot(root)
		if err != nil {
			return nil, fmt.Errorf("reading the facts of the host: %w", err)
		}
		defer host.Close()
		facts, err := values.Facts(host.FS(), keys)
		maps.Copy(given, facts)
		return given, err
	}
}
