// Package vault implements the secret store secretstores.hashicorp.vault. It reads secrets from the KV engine, version
// 2, of a Vault server over its HTTP API. The package owns the paths and responses of that engine.
//
// The package reads the token file again for every request, because Vault agents replace the token in the file. It
// starts goroutines only for bulk reads and connections. Close ends the idle connections.
package vault

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/quorate/quorate/component/secretstores"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/rest"
	"github.com/quorate/quorate/internal/userfile"
)

// Type is the component type.
const Type = "secretstores.hashicorp.vault"

// Options configure a store: server and credentials.
type Options struct {
	Address   string // https://host:port
	Token     string // exactly one of Token and TokenFile
	TokenFile string
	Namespace string // Vault namespace; empty = none
	Engine    string // path at which the engine is mounted
	Prefix    string // path of all secrets; empty = none
	Text      bool   // a secret is one value: the JSON of all its fields
	Transport http.RoundTripper
}

// Store reads the secrets of one engine. It is safe for concurrent use.
type Store struct {
	options Options
	base    string
	client  rest.Client
	gate    secretstores.Gate
}

// Open checks the options. It does not call the server, which may start later.
func Open(o Options) (*Store, error) {
	base, err := rest.Base("vaultAddr", o.Address)
	if err != nil {
		return nil, err
	}
	if (o.Token == "") == (o.TokenFile == "") {
		return nil, &fault.Error{Code: fault.Invalid, Op: "vault.Open",
			Msg: "exactly one of vaultToken and vaultTokenMountPath is needed"}
	}
	for name, path := range map[string]string{"enginePath": o.Engine, "vaultKVPrefix": o.Prefix} {
		if path != "" && !isPath(path) || path == "" && name == "enginePath" {
			return nil, &fault.Error{Code: fault.Invalid, Op: "vault.Open", Msg: name +
				" is not a path such as team/secrets"}
		}
	}
	s := &Store{options: o, base: base}
	s.client = rest.Client{
		Service: "the Vault server at " + base, HTTP: o.Transport, Authorize: s.authorize, Problem: problem,
		Denied: "check that the token is valid, has not expired, and that its policy allows to read the path",
	}
	if o.TokenFile != "" {
		_, err = s.token()
	}
	return s, err
}

// Get implements secretstores.Store. The metadata version_id chooses a version.
func (s *Store) Get(ctx context.Context, name string, metadata map[string]string) (map[string]string, error) {
	if err := s.gate.Enter(ctx); err != nil {
		return nil, err
	}
	return s.get(ctx, name, metadata[secretstores.MetadataVersionID])
}

func (s *Store) get(ctx context.Context, name, version string) (map[string]string, error) {
	if !isPath(name) {
		return nil, secretstores.Absent(name, "this cannot be the name of a secret")
	}
	address := s.base + "/v1/" + escape(s.options.Engine, "data", s.options.Prefix, name)
	if version != "" {
		if n, err := strconv.ParseUint(version, 10, 31); err != nil || n == 0 {
			return nil, &fault.Error{Code: fault.Invalid, Op: "vault.Get", Msg: "version_id is not a number above zero"}
		}
		address += "?version=" + url.QueryEscape(version)
	}
	var answer struct {
		Data struct {
			Data json.RawMessage `json:"data"`
		} `json:"data"`
	}
	if err := s.client.Get(ctx, address, s.header(), &answer); err != nil {
		return nil, about(name, err)
	}
	if s.options.Text {
		return map[string]string{name: string(answer.Data.Data)}, nil
	}
	return fieldsOf(name, answer.Data.Data)
}

// fieldsOf splits a secret into its fields. A field that is not a string keeps its JSON text, such as "42" or "true".
func fieldsOf(name string, data json.RawMessage) (map[string]string, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil || fields == nil {
		return nil, &fault.Error{Code: fault.Corrupt, Op: "vault.Get", Key: name,
			Msg:  "the answer of the server has no secret in it",
			Hint: "check that enginePath is an engine of type kv, version 2"}
	}
	out := make(map[string]string, len(fields))
	for key, value := range fields {
		var text string
		if len(value) == 0 || value[0] != '"' || json.Unmarshal(value, &text) != nil {
			text = string(value)
		}
		out[key] = text
	}
	return out, nil
}

// Bulk implements secretstores.Store. It returns all secrets below the prefix, including those in subfolders.
func (s *Store) Bulk(ctx context.Context, _ map[string]string) (map[string]map[string]string, error) {
	if err := s.gate.Enter(ctx); err != nil {
		return nil, err
	}
	names, err := s.list(ctx, "", nil, 0)
	if err != nil {
		return nil, err
	}
	return secretstores.Gather(ctx, names, func(ctx context.Context, name string) (map[string]string, error) {
		return s.get(ctx, name, "")
	})
}

// maxFolders bounds the depth of folders.
const maxFolders = 32

// list appends the names of the secrets in a folder and its subfolders to names. depth is the depth of the folder below
// the prefix.
func (s *Store) list(ctx context.Context, folder string, names []string, depth int) ([]string, error) {
	if depth > maxFolders {
		return nil, &fault.Error{Code: fault.TooLarge, Op: "vault.Bulk",
			Msg: "the folders of secrets lie deeper in each other than " + strconv.Itoa(maxFolders) + " levels"}
	}
	address := s.base + "/v1/" + escape(s.options.Engine, "metadata", s.options.Prefix,
		strings.TrimSuffix(folder, "/")) + "?list=true"
	var answer struct {
		Data struct {
			Keys []string `json:"keys"`
		} `json:"data"`
	}
	err := s.client.Get(ctx, address, s.header(), &answer)
	switch {
	case fault.Is(err, fault.NotFound): // the folder has no secrets
		return names, nil
	case err != nil:
		return nil, fault.Wrap(err, "vault.Bulk", "listing the secrets")
	}
	for _, key := range answer.Data.Keys {
		name := folder + key
		switch {
		case strings.HasSuffix(key, "/"):
			names, err = s.list(ctx, name, names, depth+1)
		case isPath(name):
			names = append(names, name)
			err = secretstores.Fits(len(names))
		}
		if err != nil {
			return nil, err
		}
	}
	return names, nil
}

// Features implements secretstores.Featurer.
func (s *Store) Features() []secretstores.Feature {
	if s.options.Text {
		return nil
	}
	return []secretstores.Feature{secretstores.FeatureMultipleKeyValues}
}

// Close implements secretstores.Store.
func (s *Store) Close() error {
	if t, ok := s.options.Transport.(interface{ CloseIdleConnections() }); s.gate.Close() && ok {
		t.CloseIdleConnections()
	}
	return nil
}

func (s *Store) header() http.Header {
	h := http.Header{"X-Vault-Request": {"true"}}
	if s.options.Namespace != "" {
		h["X-Vault-Namespace"] = []string{s.options.Namespace}
	}
	return h
}

func (s *Store) authorize(_ context.Context, h http.Header, _ bool) (bool, error) {
	token, err := s.token()
	h["X-Vault-Token"] = []string{token}
	return false, err
}

func (s *Store) token() (string, error) {
	if s.options.TokenFile == "" {
		return s.options.Token, nil
	}
	data, err := userfile.Read(s.options.TokenFile)
	if err != nil {
		return "", &fault.Error{Code: fault.Denied, Op: "vault.Token", Msg: "reading the token of vaultTokenMountPath",
			Err: err}
	}
	token := strings.TrimSpace(string(data))
	if token == "" || strings.ContainsAny(token, "\r\n\x00") {
		return "", &fault.Error{Code: fault.Denied, Op: "vault.Token", Msg: s.options.TokenFile +
			" does not hold one token"}
	}
	return token, nil
}

// problem returns the messages in an error response of the server, or "" if there are none.
func problem(body []byte) string {
	var answer struct {
		Errors []string `json:"errors"`
	}
	if json.Unmarshal(body, &answer) != nil {
		return ""
	}
	return strings.Join(answer.Errors, "; ")
}

func about(name string, err error) error {
	var e *fault.Error
	if errors.As(err, &e) && e.Code == fault.NotFound {
		return secretstores.Absent(name, "the engine has no such secret, or not this version of it")
	}
	return err
}

// isPath reports whether path can be used in a request unchanged. It returns false for a path with an empty segment, a
// segment "." or "..", or special characters, because a server may rewrite such a path and then return a different
// secret.
func isPath(path string) bool {
	if len(path) > 512 || strings.ContainsFunc(path, func(r rune) bool {
		return r < ' ' || r == 0x7f || r == '?' || r == '#' || r == '%' || r == '*' || r == '\\' || r == '\uFFFD'
	}) {
		return false
	}
	for part := range strings.SplitSeq(path, "/") {
		if part == "" || part == "." || part == ".." {
			return false
		}
	}
	return true
}

// escape joins paths with slashes. It omits empty paths and escapes each segment.
func escape(paths ...string) string {
	var out []string
	for _, path := range paths {
		if path == "" {
			continue
		}
		for part := range strings.SplitSeq(path, "/") {
			out = append(out, url.PathEscape(part))
		}
	}
	return strings.Join(out, "/")
}
