package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"

	"github.com/quorate/quorate/internal/fault"
)

// stateClient uses the HTTP API of a node, as its application does.
type stateClient struct {
	base  string // for example http://127.0.0.1:3500
	token string // empty = none
	http  *http.Client
}

// readOptions are the options of a read.
type readOptions struct {
	consistency  string
	maxStaleness string
}

func (o readOptions) query() url.Values {
	q := url.Values{}
	setIf(q, "consistency", o.consistency)
	setIf(q, "metadata.maxStaleness", o.maxStaleness)
	return q
}

func setIf(q url.Values, name, value string) {
	if value != "" {
		q.Set(name, value)
	}
}

// item is one value as the API returned it.
type item struct {
	Key         string          `json:"key"`
	Found       bool            `json:"found"`
	Value       json.RawMessage `json:"value,omitempty"`       // JSON; base64 text where ContentType is set
	ContentType string          `json:"contentType,omitempty"` // empty = JSON
	ETag        string          `json:"etag,omitempty"`
	Expires     string          `json:"ttlExpireTime,omitempty"`
	Consistency string          `json:"consistency,omitempty"` // the level of the read
	AgeMS       string          `json:"ageMs,omitempty"`

	bytes []byte // the raw value
}

func (c *stateClient) get(ctx context.Context, store, key string, o readOptions) (item, error) {
	r, err := c.do(ctx, http.MethodGet, statePath(store, key), o.query(), nil, nil)
	if err != nil {
		return item{}, err
	}
	it := item{Key: key, Found: r.status == http.StatusOK, bytes: r.body, ETag: r.header.Get("ETag"),
		Expires:     r.header.Get("metadata.ttlExpireTime"),
		Consistency: r.header.Get("Quorate-Consistency"), AgeMS: r.header.Get("Quorate-Age")}
	if !it.Found {
		return it, nil
	}
	if kind := r.header.Get("Content-Type"); kind != "application/json" {
		it.ContentType = kind
	}
	if it.Value = r.body; it.ContentType != "" || !json.Valid(r.body) {
		it.Value, err = json.Marshal(r.body) // base64
	}
	return it, err
}

// write is one item to save.
type write struct {
	Key      string            `json:"key"`
	ETag     string            `json:"etag,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Options  map[string]string `json:"options,omitempty"`

	value []byte // JSON, sent byte for byte
}

func (c *stateClient) set(ctx context.Context, store string, w write) (etag string, err error) {
	rest, err := json.Marshal(w)
	if err != nil {
		return "", err
	}
	r, err := c.do(ctx, http.MethodPost, statePath(store, ""), nil, nil, append(w.append([]byte{'['}, rest), ']'))
	return r.header.Get("ETag"), err
}

// append appends the JSON of w to body and returns the result. The parameter rest is the JSON of w without its value.
// append copies the value unchanged, because a JSON encoder could alter its bytes.
func (w *write) append(body, rest []byte) []byte {
	body = append(append(body, `{"value":`...), w.value...)
	return append(append(body, ','), rest[1:]...)
}

func (c *stateClient) delete(ctx context.Context, store, key, etag string, q url.Values) error {
	h := http.Header{}
	if etag != "" {
		h.Set("If-Match", etag)
	}
	_, err := c.do(ctx, http.MethodDelete, statePath(store, key), q, h, nil)
	return err
}

// listed is one key of a listing.
type listed struct {
	Key     string `json:"key"`
	ETag    string `json:"etag"`
	Expires string `json:"ttlExpireTime,omitempty"`
}

// listFlags are the options of a listing.
type listFlags struct {
	prefix string
	actors bool // only actor state
}

// page requests one page of keys. The parameter token is the result next of the previous call, or empty for the first
// page. The result next is empty if there are no more pages.
func (c *stateClient) page(ctx context.Context, store string, f listFlags, token string, limit int) (keys []listed,
	next string, err error) {
	q := url.Values{"limit": {strconv.Itoa(limit)}}
	setIf(q, "prefix", f.prefix)
	if f.actors {
		q.Set("metadata.actorState", "true")
	}
	setIf(q, "token", token)
	r, err := c.do(ctx, http.MethodGet, statePath(store, ""), q, nil, nil)
	if err != nil {
		return nil, "", err
	}
	var page struct {
		Keys  []listed `json:"keys"`
		Token string   `json:"token"`
	}
	if err := json.Unmarshal(r.body, &page); err != nil {
		return nil, "", unreadable(c.base, err)
	}
	return page.Keys, page.Token, nil
}

// stores returns the names of the state stores that the application may use.
func (c *stateClient) stores(ctx context.Context) ([]string, error) {
	_, names, err := c.about(ctx)
	return names, err
}

// about returns the application of the API, and its state stores.
func (c *stateClient) about(ctx context.Context) (app string, stores []string, err error) {
	r, err := c.do(ctx, http.MethodGet, "/v1.0/metadata", nil, nil, nil)
	if err != nil {
		return "", nil, err
	}
	var body struct {
		ID         string                        `json:"id"`
		Components []struct{ Name, Type string } `json:"components"`
	}
	if err := json.Unmarshal(r.body, &body); err != nil {
		return "", nil, unreadable(c.base, err)
	}
	for _, comp := range body.Components {
		if strings.HasPrefix(comp.Type, "state.") {
			stores = append(stores, comp.Name)
		}
	}
	return body.ID, stores, nil
}

// statePath returns the URL path of a store, or of a key in it if key is not empty. It escapes the store name and the
// key.
func statePath(store, key string) string {
	path := "/v1.0/state/" + url.PathEscape(store)
	if key != "" {
		path += "/" + url.PathEscape(key)
	}
	return path
}

// response is a successful response.
type response struct {
	status int
	header http.Header
	body   []byte
}

func (c *stateClient) do(ctx context.Context, method, path string, q url.Values, h http.Header,
	body []byte) (response, error) {
	address := c.base + path
	if len(q) > 0 {
		address += "?" + q.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(body))
	if err != nil {
		return response{}, usagef("%q is not the address of an API (write it as 127.0.0.1:3500 or "+
			"http://127.0.0.1:3500)", c.base)
	}
	for name, values := range h {
		req.Header[name] = values
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		req.Header.Set("dapr-api-token", c.token)
	}
	return c.answer(c.http.Do(req))
}

func (c *stateClient) answer(resp *http.Response, err error) (response, error) {
	if err != nil {
		return response{}, unreachable(c.base, err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return response{}, unreadable(c.base, err)
	}
	if resp.StatusCode >= http.StatusMultipleChoices {
		return response{}, refusal(resp.StatusCode, body)
	}
	return response{resp.StatusCode, resp.Header, body}, nil
}

// refusal converts an error response of the API into an error.
func refusal(status int, body []byte) error {
	var e struct{ ErrorCode, Message string }
	if err := json.Unmarshal(body, &e); err != nil || e.Message == "" {
		e.Message = fmt.Sprintf("the server is not a Quorate API: status %d", status)
	}
	out := &fault.Error{Code: fault.Internal, Op: "cli.state", Msg: e.Message}
	switch status {
	case http.StatusConflict:
		out.Code = fault.Conflict
	case http.StatusUnauthorized:
		out.Code, out.Hint = fault.Denied, "put the token into DAPR_API_TOKEN, or name its file with --api-token-file"
	case http.StatusForbidden:
		out.Code = fault.Denied
	case http.StatusBadRequest:
		out.Code = fault.Invalid
	}
	return out
}

func unreachable(base string, err error) error {
	e := &fault.Error{Code: fault.Unavailable, Op: "cli.state", Msg: "no answer from " + base, Err: rootCause(err)}
	if errors.Is(err, syscall.ECONNREFUSED) {
		e.Msg, e.Err = "no node listens at "+base, nil
		e.Hint = "start one with: quorate run; or give its address with --http-port or --address"
	}
	return e
}

// rootCause returns the cause inside a url.Error, without its verb and address.
func rootCause(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

func unreadable(base string, err error) error {
	return &fault.Error{Code: fault.Internal, Op: "cli.state", Msg: "the answer of " + base + " cannot be read",
		Err: err}
}
