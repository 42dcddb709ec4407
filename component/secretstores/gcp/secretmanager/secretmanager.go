// Package secretmanager implements the secret store secretstores.gcp.secretmanager. It reads secrets from Google Cloud
// Secret Manager over its REST API. The package owns the requests and the verification of responses.
//
// The package verifies the checksums of secrets and caches the access token until it expires. It starts goroutines only
// for bulk reads, token fetches and connections. Close ends the token fetches and the idle connections.
package secretmanager

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"hash/crc32"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/quorate/quorate/component/secretstores"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/rest"
)

// Type is the component type.
const Type = "secretstores.gcp.secretmanager"

// DefaultEndpoint is the address of the service.
const DefaultEndpoint = "https://secretmanager.googleapis.com"

// Options configure a store: project and identity.
type Options struct {
	Project     string
	Credentials []byte // JSON key file of a service account; nil = credentials of the environment
	Endpoint    string // empty = DefaultEndpoint
	Transport   http.RoundTripper
}

// Store reads the secrets of one project. It is safe for concurrent use.
type Store struct {
	options Options
	base    string // URL of the secrets of the project
	client  rest.Client
	tokens  *tokens
	gate    secretstores.Gate
}

// Open checks the options. It does not call the service, which may not be reachable yet.
func Open(o Options) (*Store, error) {
	if o.Endpoint == "" {
		o.Endpoint = DefaultEndpoint
	}
	base, err := rest.Base("endpoint", o.Endpoint)
	if err != nil {
		return nil, err
	}
	if rest.Exposed(base) {
		return nil, &fault.Error{Code: fault.Invalid, Op: "secretmanager.Open",
			Msg: "endpoint is not https: the access token could be read in transit"}
	}
	if !isID(o.Project) {
		return nil, &fault.Error{Code: fault.Invalid, Op: "secretmanager.Open",
			Msg: "project_id is not the id of a project"}
	}
	s := &Store{options: o, base: base + "/v1/projects/" + url.PathEscape(o.Project) + "/secrets"}
	if s.tokens, err = newTokens(o.Credentials, o.Transport); err != nil {
		return nil, err
	}
	s.client = rest.Client{
		Service: "Google Cloud Secret Manager", HTTP: o.Transport, Authorize: s.tokens.authorize, Problem: problem,
		Denied: "check that the service account exists and has the role Secret Manager Secret Accessor (and " +
			"Viewer, for a bulk read)",
	}
	return s, nil
}

// Get implements secretstores.Store. The metadata version_id chooses a version.
func (s *Store) Get(ctx context.Context, name string, metadata map[string]string) (map[string]string, error) {
	if err := s.gate.Enter(ctx); err != nil {
		return nil, err
	}
	version := "latest"
	if asked := metadata[secretstores.MetadataVersionID]; asked != "" {
		version = asked
	}
	return s.get(ctx, name, version)
}

func (s *Store) get(ctx context.Context, name, version string) (map[string]string, error) {
	switch {
	case !isID(name):
		return nil, secretstores.Absent(name, "this cannot be the name of a secret of Google Cloud")
	case !isID(version):
		return nil, &fault.Error{Code: fault.Invalid, Op: "secretmanager.Get",
			Msg: "version_id is neither a number nor an alias"}
	}
	var answer struct {
		Payload struct {
			Data     string `json:"data"`
			Checksum string `json:"dataCrc32c"`
		} `json:"payload"`
	}
	address := s.base + "/" + url.PathEscape(name) + "/versions/" + url.PathEscape(version) + ":access"
	if err := s.client.Get(ctx, address, nil, &answer); err != nil {
		return nil, about(name, err)
	}
	data, err := base64.StdEncoding.DecodeString(answer.Payload.Data)
	if err != nil || !intact(data, answer.Payload.Checksum) {
		return nil, &fault.Error{Code: fault.Corrupt, Op: "secretmanager.Get", Key: name,
			Msg: "the value of the secret arrived damaged"}
	}
	return map[string]string{name: secretstores.Text(data)}, nil
}

// intact reports whether data has the CRC-32C checksum that the service sent. It returns true if there is no
// checksum.
func intact(data []byte, checksum string) bool {
	if checksum == "" {
		return true
	}
	return checksum == strconv.FormatUint(uint64(crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))), 10)
}

// page is how many names one request of a bulk read returns.
const page = "250"

// Bulk implements secretstores.Store. It returns the latest version of every secret. It omits a secret without an
// enabled version.
func (s *Store) Bulk(ctx context.Context, _ map[string]string) (map[string]map[string]string, error) {
	if err := s.gate.Enter(ctx); err != nil {
		return nil, err
	}
	var names []string
	query := url.Values{"pageSize": {page}}
	for {
		var answer struct {
			Secrets []struct {
				Name string `json:"name"` // projects/*/secrets/<name>
			} `json:"secrets"`
			Next string `json:"nextPageToken"`
		}
		if err := s.client.Get(ctx, s.base+"?"+query.Encode(), nil, &answer); err != nil {
			return nil, fault.Wrap(err, "secretmanager.Bulk", "listing the secrets")
		}
		for _, found := range answer.Secrets {
			names = append(names, found.Name[strings.LastIndexByte(found.Name, '/')+1:])
		}
		if err := secretstores.Fits(len(names)); err != nil {
			return nil, err
		}
		if answer.Next == "" {
			break
		}
		query.Set("pageToken", answer.Next)
	}
	return secretstores.Gather(ctx, names, func(ctx context.Context, name string) (map[string]string, error) {
		return s.get(ctx, name, "latest")
	})
}

// Close implements secretstores.Store.
func (s *Store) Close() error {
	if !s.gate.Close() {
		return nil
	}
	s.tokens.fetches.Close()
	if t, ok := s.options.Transport.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
	return nil
}

// problem returns the status and the message in an error response of the service, or "" if there are none.
func problem(body []byte) string {
	var answer struct {
		Error struct {
			Status  string `json:"status"`
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(body, &answer) != nil {
		return ""
	}
	return strings.TrimSpace(answer.Error.Status + " " + answer.Error.Message)
}

func about(name string, err error) error {
	var e *fault.Error
	if errors.As(err, &e) && e.Code == fault.NotFound {
		return secretstores.Absent(name, "the project has no such secret, or not this version of it")
	}
	return err
}

// isID reports whether name is valid as the name of a project, a secret, a version or an alias. Names must be checked,
// because an invalid name could change the path of the request to Google Cloud.
func isID(name string) bool {
	if name == "" || len(name) > 255 {
		return false
	}
	for _, c := range []byte(name) {
		ok := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_'
		if !ok {
			return false
		}
	}
	return true
}
