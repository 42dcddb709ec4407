package http

import (
	"maps"
	"net/http"
	"slices"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/http/jsonbody"
)

const secretsPrefix = "/v1.0/secrets/"

// headerCacheControl is the header that keeps answers with secrets out of caches.
const headerCacheControl = "Cache-Control"

// secretRoutes serves secrets.
type secretRoutes struct {
	*core
	secrets *api.Secrets
}

func (s *secretRoutes) routes() []route {
	return []route{
		{verbs: "GET", path: "/v1.0/secrets/{store}/bulk", serve: s.bulkGetSecrets},
		{verbs: "GET", path: "/v1.0/secrets/{store}/*", serve: s.getSecret},
	}
}

// getSecret serves GET /v1.0/secrets/{store}/{name}.
func (s *secretRoutes) getSecret(p *reply, r *http.Request) error {
	request, err := decodeSecret(r)
	if err != nil {
		return err
	}
	ctx := s.deadline(p, r)
	defer ctx.end()
	secret, err := s.secrets.Get(ctx, request)
	if err != nil {
		return err
	}
	if secret == nil {
		p.empty()
		return nil
	}
	return s.sendSecrets(p, func(dst []byte) []byte { return appendSecret(dst, secret) })
}

// bulkGetSecrets serves GET /v1.0/secrets/{store}/bulk.
func (s *secretRoutes) bulkGetSecrets(p *reply, r *http.Request) error {
	request, err := decodeSecret(r)
	if err != nil {
		return err
	}
	ctx := s.deadline(p, r)
	defer ctx.end()
	secrets, err := s.secrets.BulkGet(ctx, request)
	if err != nil {
		return err
	}
	return s.sendSecrets(p, func(dst []byte) []byte { return appendSecrets(dst, secrets) })
}

func decodeSecret(r *http.Request) (s api.SecretRequest, err error) {
	path := restOf(r.URL, secretsPrefix)
	if s.Store, err = path.next(); err != nil {
		return s, err
	}
	if s.Name, err = path.all(); err != nil {
		return s, err
	}
	q, err := parseQuery(r)
	s.Metadata = q.metadata
	return s, err
}

// sendSecrets answers 200 with a JSON body that contains secrets. fill appends the body to its argument. sendSecrets
// clears the buffer, so that no secret stays in the pool. It returns the errors of reply.send.
func (s *secretRoutes) sendSecrets(p *reply, fill func([]byte) []byte) error {
	b := s.buffer()
	defer s.release(b)
	b.data = fill(b.data)
	p.Header()[headerCacheControl] = []string{"no-store"}
	err := p.send(http.StatusOK, valueJSON, b.data)
	clear(b.data)
	return err
}

func appendSecret(dst []byte, secret map[string]string) []byte {
	dst = append(dst, '{')
	for i, key := range slices.Sorted(maps.Keys(secret)) {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = jsonbody.AppendString(dst, key)
		dst = append(dst, ':')
		dst = jsonbody.AppendString(dst, secret[key])
	}
	return append(dst, '}')
}

func appendSecrets(dst []byte, secrets map[string]map[string]string) []byte {
	dst = append(dst, '{')
	for i, name := range slices.Sorted(maps.Keys(secrets)) {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = jsonbody.AppendString(dst, name)
		dst = append(dst, ':')
		dst = appendSecret(dst, secrets[name])
	}
	return append(dst, '}')
}
