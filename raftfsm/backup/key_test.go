package backup_test

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"

	"filippo.io/age"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/backup"
)

// sealed returns text encrypted with k.
func sealed(t testing.TB, k backup.Key, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := backup.Encrypt(&b, k)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// opened decrypts a file to its end, and returns the content.
func opened(file []byte, plain bool, keys ...backup.Key) (string, error) {
	s, err := backup.Decrypt(bytes.NewReader(file), keys, plain)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(s)
	return string(text), err
}

func TestEncrypt_RoundTrips(t *testing.T) {
	text := strings.Repeat("a secret value ", 20_000) // several chunks of age
	key, other := backup.NewKey(), backup.NewKey()
	file := sealed(t, key, text)
	if bytes.Contains(file, []byte("secret")) {
		t.Error("values can be read in the file")
	}
	flipped := bytes.Clone(file)
	flipped[len(flipped)-100] ^= 1
	for name, c := range map[string]struct {
		file  []byte
		keys  []backup.Key
		plain bool
		code  fault.Code // empty = it is read
		words string
	}{
		"the key":                  {file, []backup.Key{key}, false, "", ""},
		"the key and an older one": {file, []backup.Key{other, key}, false, "", ""},
		"no key":                   {file, nil, false, fault.Invalid, "--backup-key-file"},
		"another key":              {file, []backup.Key{other}, false, fault.Denied, "another key"},
		"a changed byte":           {flipped, []backup.Key{key}, false, fault.Corrupt, "changed"},
		"cut off":                  {file[:len(file)-20], []backup.Key{key}, false, fault.Corrupt, "cut off"},
		"cut off between chunks": {file[:len(file)-len(text)%65536-16], []backup.Key{key}, false, fault.Corrupt,
			"cut off"},
		"plain, no key":               {[]byte(text), nil, false, "", ""},
		"plain, a key":                {[]byte(text), []backup.Key{key}, false, fault.Denied, "--allow-unencrypted"},
		"plain, a key and allowed":    {[]byte(text), []backup.Key{key}, true, "", ""},
		"short and plain, a key":      {[]byte("x"), []backup.Key{key}, false, fault.Denied, "not encrypted"},
		"encrypted with a public key": {public(t, text), []backup.Key{key}, true, fault.Denied, "another key"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := opened(c.file, c.plain, c.keys...)
			if c.code == "" {
				if err != nil || got != text {
					t.Errorf("%d bytes, %v", len(got), err)
				}
				return
			}
			if !fault.Is(err, c.code) || !strings.Contains(fault.Text(err), c.words) {
				t.Errorf("%v", err)
			}
		})
	}
}

// public returns text encrypted for a public key of age. Anyone who knows the public key can do this.
func public(t testing.TB, text string) []byte {
	t.Helper()
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	w, err := age.Encrypt(&b, id.Recipient())
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(w, text)
	_ = w.Close()
	return b.Bytes()
}

// The age program can decrypt a backup: the key is its passphrase.
func TestEncrypt_WritesAgeFileWithPassphrase(t *testing.T) {
	key := backup.NewKey()
	id, err := age.NewScryptIdentity(key.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	r, err := age.Decrypt(bytes.NewReader(sealed(t, key, "text")), id)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(r); err != nil || string(text) != "text" {
		t.Errorf("%q, %v", text, err)
	}
}

func TestParseKeys(t *testing.T) {
	a, b := backup.NewKey(), backup.NewKey()
	for name, c := range map[string]struct {
		file  string
		keys  int
		words string // of the error
	}{
		"one":             {a.Reveal() + "\n", 1, ""},
		"two":             {"# new\n" + a.Reveal() + "\r\n\n  # old\n" + b.Reveal(), 2, ""},
		"a long password": {strings.Repeat("x", 32), 1, ""},
		"nothing":         {"\n# a comment\n", 0, "no key"},
		"too short":       {"hunter2", 0, "7 characters"},
		"an age identity": {"# public key: " +
			"age1...\nAGE-SECRET-KEY-1QQPQYQSZQGPQYQSZQGPQYQSZQGPQYQSZQGPQYQSZQGPQYQSZQGPQHGW3GU", 0, "forge"},
	} {
		keys, err := backup.ParseKeys([]byte(c.file))
		if len(keys) != c.keys || (err == nil) != (c.words == "") || err != nil &&
			(!fault.Is(err, fault.Invalid) || !strings.Contains(fault.Text(err), c.words)) {
			t.Errorf("%s: %d keys, %v", name, len(keys), err)
		}
	}
	if text := fmt.Sprintf("%v %+v %#v %s", a, a, a, a); strings.Contains(text, a.Reveal()) {
		t.Errorf("a key shows itself: %s", text)
	}
}

func FuzzDecrypt(f *testing.F) {
	key := backup.NewKey()
	f.Add([]byte("age-encryption.org/v1\n-> scrypt c2FsdHNhbHRzYWx0c2FsdA 1\nAAAA\n--- AAAA\n"))
	f.Add([]byte("QRBACKUP"))
	f.Fuzz(func(t *testing.T, file []byte) {
		if text, err := opened(file, false, key); err == nil {
			t.Errorf("%d bytes were accepted as authentic", len(text))
		}
	})
}
