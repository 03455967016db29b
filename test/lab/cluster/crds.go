// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"slices"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/api"
)

// PublicKey is a key that the image policies of a test have, in base64 as the API has it.
const PublicKey = "LS0tLS1CRUdJTiBQVUJMSUMgS0VZLS0tLS0KTUZrd0V3WUhLb1pJemowQ0FRWUlLb1pJemowREFRY0RRZ0FFeWtlU014VUE2" +
	"ZnVoQktCaktpS0VzVEZOV3hvKwpmMU1mZDhia3BlRTNReWpyejlXbXNXZkh5QVBtYTQ3ZjllZEhzSVZiSTRvaXJvbCtobVVa" +
	"aXJrVU1BPT0KLS0tLS1FTkQgUFVCTElDIEtFWS0tLS0tCg=="

// installCRDs adds our kinds. wait returns when all of them are served.
func (c *Cluster) installCRDs(ctx context.Context) (wait func() error, err error) {
	config := rest.CopyConfig(c.Config)
	// The kinds are OpenShift's own. Warnings of the API server about them are not ours to fix.
	config.WarningHandler = rest.NoWarnings{}
	client, err := apiextensions.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	crds := client.ApiextensionsV1().CustomResourceDefinitions()
	files, err := api.CRDs.ReadDir("crds")
	if err != nil {
		return nil, err
	}
	var names []string
	for _, file := range files {
		text, err := api.CRDs.ReadFile("crds/" + file.Name())
		if err != nil {
			return nil, err
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.Unmarshal(text, crd); err != nil {
			return nil, fmt.Errorf("reading %s: %w", file.Name(), err)
		}
		if slices.Contains(c.options.Without, crd.Spec.Names.Plural) {
			continue
		}
		if _, err := crds.Create(ctx, crd, metav1.CreateOptions{}); err != nil {
			return nil, fmt.Errorf("installing %s: %w", file.Name(), err)
		}
		names = append(names, crd.Name)
	}
	return func() error {
		for _, name := range names {
			for {
				crd, err := crds.Get(ctx, name, metav1.GetOptions{})
				if err == nil && established(crd) {
					break
				}
				select {
				case <-ctx.Done():
					return fmt.Errorf("waiting for %s to be established: %w", name, context.Cause(ctx))
				case <-time.After(poll):
				}
			}
		}
		return nil
	}, nil
}

func established(crd *apiextensionsv1.CustomResourceDefinition) bool {
	for _, condition := range crd.Status.Conditions {
		if condition.Type == apiextensionsv1.Established {
			return condition.Status == apiextensionsv1.ConditionTrue
		}
	}
	return false
}
