package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quorate/quorate/internal/trust"
)

func TestTokenCreate_MakesAValidToken(t *testing.T) {
	c := newConsole(t)
	r := c.run("token", "create")
	if _, err := trust.ParseToken(strings.TrimSuffix(r.stdout, "\n")); err != nil || r.code != 0 {
		t.Errorf("%+v: %v", r, err)
	}
	var out struct{ Token, File, Fingerprint string }
	if err := json.Unmarshal([]byte(c.run("token", "create", "--json").stdout), &out); err != nil {
		t.Fatal(err)
	}
	if token, err := trust.ParseToken(out.Token); err != nil || token.Fingerprint() != out.Fingerprint {
		t.Errorf("%+v: %v", out, err)
	}
}

func TestTokenCreate_WritesAPrivateFileOnce(t *testing.T) {
	c := newConsole(t)
	path := filepath.Join(t.TempDir(), "token")
	r := c.run("token", "create", "--file", path)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := trust.ParseTokens(text)
	if err != nil || r.code != 0 || !strings.Contains(r.stdout, tokens[0].Fingerprint()) ||
		strings.Contains(r.stdout, strings.TrimSpace(string(text))) {
		t.Errorf("%+v: %v", r, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v %v", info.Mode(), err)
	}
	if r := c.run("token", "create", "--file", path); r.code != 1 ||
		!strings.Contains(r.stderr, path+" already exists") {
		t.Errorf("again: %+v", r)
	}
	if again, err := os.ReadFile(path); err != nil || string(again) != string(text) {
		t.Errorf("it was changed: %v", err)
	}
	if r := c.run("token", "create", "--file", filepath.Join(path, "x")); r.code != 1 ||
		!strings.Contains(r.stderr, "cannot be made") {
		t.Errorf("nowhere: %+v", r)
	}
}

func TestTokenCreate_IfMissingKeepsAnExistingToken(t *testing.T) {
	c := newConsole(t)
	path := filepath.Join(t.TempDir(), "token")
	create := func() result { return c.run("token", "create", "--if-missing", "--file", path) }
	if r := create(); r.code != 0 {
		t.Fatalf("the first: %+v", r)
	}
	before, _ := os.ReadFile(path)
	if r := create(); r.code != 0 || !strings.Contains(r.stdout, "was already in "+path) {
		t.Errorf("the second: %+v", r)
	}
	if after, err := os.ReadFile(path); err != nil || string(after) != string(before) {
		t.Errorf("it was changed: %v", err)
	}
	if err := os.WriteFile(path, []byte("password\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := create(); r.code != 1 || !strings.Contains(r.stderr, "contains no cluster token") {
		t.Errorf("something else: %+v", r)
	}
	if r := c.run("token", "create", "--if-missing"); r.code != 2 {
		t.Errorf("no file: %+v", r)
	}
}
