package http

import (
	"maps"
	"net/http"
	"slices"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/http/jsonbody"
)

// headerCacheControl keeps answers with secrets out of every cache.
const headerCacheControl = "Cache-Control"

// getSecret serves GET /v1.0/secrets/{store}/{name}.
func (f *Face) getSecret(p *reply, r *http.Request) error {
	request, err := decodeSecret(r)
	if err != nil {
		return err
	}
	ctx := f.deadline(p, r)
	defer ctx.end()
	secret, err := f.secrets.Get(ctx, request)
	if err != nil {
		return err
	}
	if secret == nil {
		p.empty()
		return nil
	}
	f.sendSecrets(p, func(dst []byte) []byte { return appendSecret(dst, secret) })
	return nil
}

// bulkGetSecrets serves GET /v1.0/secrets/{store}/bulk.
func (f *Face) bulkGetSecrets(p *reply, r *http.Request) error {
	request, err := decodeSecret(r)
	if err != nil {
		return err
	}
	ctx := f.deadline(p, r)
	defer ctx.end()
	secrets, err := f.secrets.BulkGet(ctx, request)
	if err != nil {
		return err
	}
	f.sendSecrets(p, func(dst []byte) []byte { return appendSecrets(dst, secrets) })
	return nil
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

// sendSecrets answers with secrets. The buffer is cleared before it is used again.
func (f *Face) sendSecrets(p *reply, fill func([]byte) []byte) {
	b := f.buffer()
	defer f.release(b)
	b.data = fill(b.data)
	p.Header()[headerCacheControl] = []string{"no-store"}
	p.send(http.StatusOK, valueJSON, b.data)
	clear(b.data)
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
