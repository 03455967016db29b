// SPDX-License-Identifier: Apache-2.0

// Command chart makes the OCI artefact of a packed Helm chart, in an OCI layout:
//
//	chart FILE.tgz LAYOUT
//
// It is what helm push makes in a registry, but for the time in it, which is SOURCE_DATE_EPOCH: so the same chart makes
// the same bytes.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/opencontainers/image-spec/specs-go/v1"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/registry"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/content/oci"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: chart FILE.tgz LAYOUT")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, file, layout string) error {
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("reading SOURCE_DATE_EPOCH: %w", err)
	}
	chart, err := loader.LoadFile(file)
	if err != nil {
		return fmt.Errorf("reading chart %s: %w", file, err)
	}
	packed, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("reading chart %s: %w", file, err)
	}
	about, err := json.Marshal(chart.Metadata)
	if err != nil {
		return fmt.Errorf("describing chart %s: %w", file, err)
	}
	store, err := oci.NewWithContext(ctx, layout)
	if err != nil {
		return fmt.Errorf("making layout %s: %w", layout, err)
	}
	blobs := map[string][]byte{registry.ConfigMediaType: about, registry.ChartLayerMediaType: packed}
	descriptors := map[string]v1.Descriptor{}
	for kind, data := range blobs {
		descriptors[kind] = content.NewDescriptorFromBytes(kind, data)
		if _, err := oras.PushBytes(ctx, store, kind, data); err != nil {
			return fmt.Errorf("writing layout %s: %w", layout, err)
		}
	}
	config := descriptors[registry.ConfigMediaType]
	manifest, err := oras.PackManifest(ctx, store, oras.PackManifestVersion1_1, "", oras.PackManifestOptions{
		ConfigDescriptor: &config,
		Layers:           []v1.Descriptor{descriptors[registry.ChartLayerMediaType]},
		ManifestAnnotations: map[string]string{
			v1.AnnotationTitle:       chart.Metadata.Name,
			v1.AnnotationVersion:     chart.Metadata.Version,
			v1.AnnotationDescription: chart.Metadata.Description,
			v1.AnnotationCreated:     time.Unix(seconds, 0).UTC().Format(time.RFC3339),
		},
	})
	if err != nil {
		return fmt.Errorf("writing layout %s: %w", layout, err)
	}
	if err := store.Tag(ctx, manifest, chart.Metadata.Version); err != nil {
		return fmt.Errorf("writing layout %s: %w", layout, err)
	}
	return nil
}
