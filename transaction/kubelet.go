// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

const kubeletHealthz = "http://127.0.0.1:10248/healthz"

// KubeletHealthy returns why the kubelet of this host is not healthy, by its own word, nil where it is.
func KubeletHealthy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, kubeletHealthz, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", kubeletHealthz, resp.Status)
	}
	return nil
}
