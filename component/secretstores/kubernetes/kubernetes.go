// Package kubernetes implements the secret store secretstores.kubernetes. It reads the Secret objects of a Kubernetes
// cluster over the HTTP API. The package owns the requests and the choice of credentials: those of the pod, or of a
// kubeconfig file.
//
// The package reads a token file again for every request, because the token of a pod is often valid for only an hour.
// It starts goroutines only for connections. Close ends the idle connections.
package kubernetes

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"

	"github.com/quorate/quorate/component/secretstores"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/rest"
)

// Type is the component type.
const Type = "secretstores.kubernetes"

// ServiceAccountDir is the folder of a pod's credentials.
const ServiceAccountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

// Options configure a store.
type Options struct {
	Namespace string // default of requests; empty = from the credentials, otherwise "default"
	// Kubeconfig is the path of a kubeconfig file. If it is empty, a store in a pod uses the service account of the
	// pod. Outside of a pod, the store uses the file in KUBECONFIG, or otherwise ~/.kube/config.
	Kubeconfig        string
	ServiceAccountDir string // empty = ServiceAccountDir
	Env               func(name string) (string, bool)
}

// Store reads the secrets of one cluster. It is safe for concurrent use.
type Store struct {
	server    server
	namespace string
	client    rest.Client
	transport *http.Transport
	gate      secretstores.Gate
}

// Open returns a store for the secrets of one Kubernetes cluster. It chooses the credentials (see Options) and checks
// the namespace. It does not call the API server of the cluster, which may start later.
func Open(o Options) (*Store, error) {
	srv, err := find(o)
	if err != nil {
		return nil, err
	}
	s := &Store{server: srv, transport: rest.Transport(srv.tls), namespace: srv.namespace}
	if o.Namespace != "" {
		s.namespace = o.Namespace
	}
	if s.namespace == "" {
		s.namespace = "default"
	}
	if !isName(s.namespace) {
		return nil, &fault.Error{Code: fault.Invalid, Op: "kubernetes.Open",
			Msg: "the namespace is not a name as Kubernetes allows"}
	}
	s.client = rest.Client{
		Service: "the Kubernetes API at " + srv.base, HTTP: s.transport, Authorize: s.authorize, Problem: problem,
		Denied: "check the credentials, and that their role allows get (and list, for a bulk read) of secrets in " +
			"the namespace",
	}
	return s, nil
}

// secret is the part of a Secret object that this package reads.
type secret struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Data map[string]string `json:"data"`
}

// Get implements secretstores.Store. The metadata namespace chooses a namespace.
func (s *Store) Get(ctx context.Context, name string, metadata map[string]string) (map[string]string, error) {
	if err := s.gate.Enter(ctx); err != nil {
		return nil, err
	}
	base, err := s.secrets(metadata)
	if err != nil {
		return nil, err
	}
	if !isName(name) {
		return nil, secretstores.Absent(name, "this cannot be the name of a Kubernetes secret")
	}
	var answer secret
	if err := s.client.Get(ctx, base+"/"+url.PathEscape(name), nil, &answer); err != nil {
		return nil, about(name, err)
	}
	return answer.decode(name)
}

// largestPage is the largest number of secrets per request of a bulk read.
const largestPage = 500

// Bulk implements secretstores.Store. The metadata namespace selects the namespace. Bulk requests the secrets in pages.
// If a page is too large, Bulk requests a page with half as many secrets.
func (s *Store) Bulk(ctx context.Context, metadata map[string]string) (map[string]map[string]string, error) {
	if err := s.gate.Enter(ctx); err != nil {
		return nil, err
	}
	base, err := s.secrets(metadata)
	if err != nil {
		return nil, err
	}
	out := map[string]map[string]string{}
	var tally secretstores.Tally
	query, page := url.Values{}, largestPage
	for {
		query.Set("limit", strconv.Itoa(page))
		var answer struct {
			Metadata struct {
				Continue string `json:"continue"`
			} `json:"metadata"`
			Items []secret `json:"items"`
		}
		err := s.client.Get(ctx, base+"?"+query.Encode(), nil, &answer)
		if fault.Is(err, fault.TooLarge) && page > 1 {
			page /= 2
			continue
		}
		if err != nil {
			return nil, fault.Wrap(err, "kubernetes.Bulk", "listing the secrets")
		}
		for _, item := range answer.Items {
			name := item.Metadata.Name
			if out[name], err = item.decode(name); err != nil {
				return nil, err
			}
			if err := tally.Add(name, out[name]); err != nil {
				return nil, err
			}
		}
		if err := secretstores.Fits(len(out)); err != nil {
			return nil, err
		}
		if answer.Metadata.Continue == "" {
			return out, nil
		}
		query.Set("continue", answer.Metadata.Continue)
	}
}

// decode decodes the base64 values of a secret.
func (s *secret) decode(name string) (map[string]string, error) {
	out := make(map[string]string, len(s.Data))
	for key, text := range s.Data {
		value, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return nil, &fault.Error{Code: fault.Corrupt, Op: "kubernetes.Get", Key: name, Msg: "the secret " + name +
				" holds a value that is not base64"}
		}
		out[key] = secretstores.Text(value)
	}
	return out, nil
}

// secrets returns the URL of all secrets in the namespace of a request.
func (s *Store) secrets(metadata map[string]string) (string, error) {
	namespace := s.namespace
	if asked := metadata[secretstores.MetadataNamespace]; asked != "" {
		namespace = asked
	}
	if !isName(namespace) {
		return "", &fault.Error{Code: fault.Invalid, Op: "kubernetes.Get",
			Msg:  "metadata.namespace is not a name as Kubernetes allows",
			Hint: "use lower-case letters, digits, - and ."}
	}
	return s.server.base + "/api/v1/namespaces/" + url.PathEscape(namespace) + "/secrets", nil
}

// Features implements secretstores.Featurer.
func (s *Store) Features() []secretstores.Feature {
	return []secretstores.Feature{secretstores.FeatureMultipleKeyValues}
}

// Close implements secretstores.Store.
func (s *Store) Close() error {
	if s.gate.Close() {
		s.transport.CloseIdleConnections()
	}
	return nil
}

func (s *Store) authorize(_ context.Context, h http.Header, _ bool) (bool, error) {
	value, err := s.server.authorization()
	if value != "" {
		h["Authorization"] = []string{value}
	}
	return false, err
}

// problem returns the message of a Status object, or "" if body is not a Status object.
func problem(body []byte) string {
	var status struct {
		Kind    string `json:"kind"`
		Message string `json:"message"`
	}
	if json.Unmarshal(body, &status) != nil || status.Kind != "Status" {
		return ""
	}
	return status.Message
}

func about(name string, err error) error {
	var e *fault.Error
	if errors.As(err, &e) && e.Code == fault.NotFound {
		return secretstores.Absent(name, "the namespace has no such secret")
	}
	return err
}

// isName reports whether name is valid as the name of a Kubernetes secret or namespace. Names must be checked, because
// an invalid name could change the path of the request to the API server.
func isName(name string) bool {
	if name == "" || len(name) > 253 || !alphanumeric(name[0]) || !alphanumeric(name[len(name)-1]) {
		return false
	}
	for _, c := range []byte(name) {
		if !alphanumeric(c) && c != '-' && c != '.' {
			return false
		}
	}
	return true
}

func alphanumeric(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }
