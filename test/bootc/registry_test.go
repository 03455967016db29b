// SPDX-License-Identifier: Apache-2.0

package bootc

// repository is the name that images of a repository have in the registry.
func (s *scene) repository(name string) string { return "registry.example/" + name }

// push makes an image of a ref in the registry and returns its digest.
func (s *scene) push(ref, version, image string) string {
	s.Helper()
	return s.encapsulate(ref, version, "registry:"+image)
}
