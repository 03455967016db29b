// SPDX-License-Identifier: Apache-2.0

// Package signature signs configurations, and judges whether a configuration has a signature by a trusted key.
//
// A signature covers the digest of a configuration, of which the name of a rendered configuration has the first half.
// Signatures travel in an annotation, so a signature changes neither the name nor the content.
package signature

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/machineconfig"
)

// rsaBits is the size of the smallest RSA key that is accepted.
const rsaBits = 2048

// Payload returns the bytes that a signature of a configuration covers. The first line keeps a signature that the same
// key gave to something else from counting.
func Payload(digest string) []byte {
	return []byte("noderefit configuration v1\nsha256:" + digest + "\n")
}

// Line returns a signature as a line of the annotation. The line names the digest, because one annotation may have
// signatures of several configurations.
func Line(digest string, signature []byte) string {
	return digest + " " + base64.StdEncoding.EncodeToString(signature)
}

// split returns the digest and the signature of a line.
func split(line string) (digest string, signature []byte, err error) {
	fields := strings.Fields(line)
	if len(fields) != 2 {
		return "", nil, fmt.Errorf("%d words where a digest and a signature are needed", len(fields))
	}
	if sum, err := hex.DecodeString(fields[0]); err != nil || len(sum) != sha256.Size {
		return "", nil, fmt.Errorf("%.70q is no digest of 64 hex digits", fields[0])
	}
	signature, err = base64.StdEncoding.DecodeString(fields[1])
	if err != nil {
		return "", nil, errors.New("the signature is not in base64")
	}
	return fields[0], signature, nil
}

// most is the number of signatures that a rendered configuration carries.
const most = 16

// Carried returns the signatures that a rendered configuration of that name carries: those that it has, and those that
// other annotations have of it. A signature that is there stays, because nodes may still have to go back to the
// configuration when nobody signs it any more.
func Carried(name, has string, annotations []string) string {
	var lines []string
	for _, text := range append([]string{has}, annotations...) {
		for line := range strings.Lines(text) {
			line = strings.Join(strings.Fields(line), " ")
			digest, _, err := split(line)
			if err == nil && machineconfig.NamedBy(name, digest) && !slices.Contains(lines, line) && len(lines) < most {
				lines = append(lines, line)
			}
		}
	}
	return strings.Join(lines, "\n")
}

// Key is a public key that may be trusted.
type Key struct {
	public crypto.PublicKey
}

// ParseKeys reads public keys in PEM, as openssl and cosign write them.
func ParseKeys(data []byte) ([]Key, error) {
	var keys []Key
	for {
		block, rest := pem.Decode(data)
		if block == nil {
			break
		}
		data = rest
		if block.Type != "PUBLIC KEY" {
			return nil, fmt.Errorf("has a %s where a PUBLIC KEY is needed", block.Type)
		}
		public, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			return nil, err
		}
		if err := usable(public); err != nil {
			return nil, err
		}
		keys = append(keys, Key{public})
	}
	if len(keys) == 0 {
		return nil, errors.New("has no PUBLIC KEY in PEM")
	}
	return keys, nil
}

// usable refuses a key of a kind that is not verified here.
func usable(public crypto.PublicKey) error {
	switch k := public.(type) {
	case ed25519.PublicKey, *ecdsa.PublicKey:
		return nil
	case *rsa.PublicKey:
		if k.N.BitLen() < rsaBits {
			return fmt.Errorf("has an RSA key of %d bits, and %d are the fewest", k.N.BitLen(), rsaBits)
		}
		return nil
	}
	return errors.New("has a key that is neither Ed25519 nor ECDSA nor RSA")
}

// made reports whether the key made a signature.
func (k Key) made(payload, signature []byte) bool {
	sum := sha256.Sum256(payload)
	switch public := k.public.(type) {
	case ed25519.PublicKey:
		return ed25519.Verify(public, payload, signature)
	case *ecdsa.PublicKey:
		return ecdsa.VerifyASN1(public, sum[:], signature)
	case *rsa.PublicKey:
		return rsa.VerifyPKCS1v15(public, crypto.SHA256, sum[:], signature) == nil
	}
	return false
}

// Missing returns why none of the keys has signed the content of a digest, "" where one has. texts are annotations.
func Missing(keys []Key, digest string, texts ...string) string {
	payload, others, broken := Payload(digest), 0, error(nil)
	for _, text := range texts {
		for line := range strings.Lines(text) {
			if strings.TrimSpace(line) == "" {
				continue
			}
			of, signature, err := split(line)
			switch {
			case err != nil:
				broken = err
			case of != digest:
			case slices.ContainsFunc(keys, func(k Key) bool { return k.made(payload, signature) }):
				return ""
			default:
				others++
			}
		}
	}
	switch {
	case others > 0:
		return fmt.Sprintf("it has %d signature(s), and none by such a key", others)
	case broken != nil:
		return "it has no signature that can be read: " + broken.Error()
	}
	return "it has no signature"
}

// ParseSigner reads a private key in PEM.
func ParseSigner(data []byte) (crypto.Signer, error) {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("has no private key in PEM")
	}
	var key any
	var err error
	switch block.Type {
	case "PRIVATE KEY":
		key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	case "EC PRIVATE KEY":
		key, err = x509.ParseECPrivateKey(block.Bytes)
	case "RSA PRIVATE KEY":
		key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
	default:
		return nil, fmt.Errorf("has a %s where a PRIVATE KEY is needed; for an encrypted key, or one in a device, have its "+
			"own tool sign the output of --payload, and pass the result with --signature", block.Type)
	}
	if err != nil {
		return nil, err
	}
	signer, is := key.(crypto.Signer)
	if !is {
		return nil, errors.New("has a key that can't sign")
	}
	return signer, usable(signer.Public())
}

// Sign signs the content of a digest.
func Sign(signer crypto.Signer, digest string) ([]byte, error) {
	payload := Payload(digest)
	if _, is := signer.Public().(ed25519.PublicKey); is {
		return signer.Sign(rand.Reader, payload, crypto.Hash(0))
	}
	sum := sha256.Sum256(payload)
	return signer.Sign(rand.Reader, sum[:], crypto.SHA256)
}
