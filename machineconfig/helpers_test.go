// SPDX-License-Identifier: Apache-2.0

package machineconfig

import (
	"bytes"
	"compress/gzip"
)

// gzippedZ is the letter z.
const gzippedZ = "H4sIAAAAAAACA6sCAK930mIBAAAA"

func gzipped(data []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(data); err != nil {
		panic(err)
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return b.Bytes()
}
