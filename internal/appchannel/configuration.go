package appchannel

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/quorate/quorate/internal/fault"
)

// Notify sends a change of a configuration item to the application, as a POST request to /configuration/{store}/{key}.
// A 2xx status means that the application has handled the change. For any other status, Notify returns fault.Internal.
// It also returns the errors of RoundTrip.
//
// Notify sends a key unescaped if the key has only unreserved characters and slashes. It escapes any other key,
// including the slashes in it.
func (c *Channel) Notify(ctx context.Context, store, key string, body []byte) error {
	where := &url.URL{Path: "/configuration/" + store + "/" + key}
	where.RawPath = "/configuration/" + url.PathEscape(store) + "/" + escapedKey(key)
	r := &http.Request{Method: http.MethodPost, URL: where, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header:        http.Header{"User-Agent": {"quorate"}, "Content-Type": {"application/json"}},
		ContentLength: int64(len(body)), Body: io.NopCloser(bytes.NewReader(body))}
	ctx, cancel := context.WithCancel(ctx) // net/http registers each request with its context; cancel removes this
	defer cancel()
	answer, err := c.RoundTrip(r.WithContext(ctx))
	if err != nil {
		return err
	}
	defer finish(answer.Body)
	if !handled(answer.StatusCode) {
		return fault.New(fault.Internal, "appchannel.Notify",
			fmt.Sprintf("POST %s answered %d", where.RawPath, answer.StatusCode))
	}
	return nil
}

// escapedKey returns a key in the form in which it is sent as part of a path. See Notify.
func escapedKey(key string) string {
	plain := strings.IndexFunc(key, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-._~/",
			r))
	}) < 0
	if plain {
		return key
	}
	return url.PathEscape(key)
}
