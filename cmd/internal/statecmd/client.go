package statecmd

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/cmd/internal/statecopy"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// stateClient uses the state API of a node.
type stateClient struct{ *command.APIClient }

// with runs use with a client of the state API.
func with(f *command.APIFlags, c *cobra.Command, use func(*stateClient) error) error {
	return f.With(c, func(client *command.APIClient) error { return use(&stateClient{client}) })
}

// checkClock returns fault.Conflict if the clocks of this process and of the node differ by more than
// statecopy.Tolerance. Copied values would then expire at the wrong time, because this process may compute the expiry
// from the remaining time to live of a value.
func (c *stateClient) checkClock(ctx context.Context, now func() time.Time) error {
	begin := now()
	r, err := c.Do(ctx, http.MethodGet, "/v1.0/metadata", nil, nil, nil)
	if err != nil {
		return err
	}
	end := now()
	there, err := http.ParseTime(r.Header.Get("Date")) // a whole second, rounded down
	if err != nil {
		return command.Unreadable(c.Base, err)
	}
	apart := max(begin.Sub(there.Add(time.Second)), there.Sub(end))
	if apart <= statecopy.Tolerance {
		return nil
	}
	return &fault.Error{Code: fault.Conflict, Op: "cli.state", Msg: fmt.Sprintf("the clock of this machine shows %s, "+
		"and that of the node %s: values would expire at the wrong time", end.UTC().Format(time.RFC3339),
		there.Format(time.RFC3339)),
		Hint: "set both clocks, for example with NTP, or run the command on the host of the node"}
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

// actorState is the query parameter for access to actor state.
const actorState = "metadata.actorState"

// maxPathKey is the maximum length in bytes of an escaped key in a URL. Longer keys are sent in the body of a request.
// An escaped key can have 12 KiB, but a node accepts headers of only about 8 KiB by default.
const maxPathKey = 2 << 10

func fitsPath(key string) bool { return len(url.PathEscape(key)) <= maxPathKey }

func (c *stateClient) get(ctx context.Context, store, key string, o readOptions) (item, error) {
	if !fitsPath(key) {
		return c.getByBody(ctx, store, key, o)
	}
	r, err := c.Do(ctx, http.MethodGet, statePath(store, key), o.query(), nil, nil)
	if err != nil {
		return item{}, err
	}
	it := item{Key: key, Found: r.Status == http.StatusOK, bytes: r.Body, ETag: r.Header.Get("ETag"),
		Expires:     r.Header.Get("metadata.ttlExpireTime"),
		Consistency: r.Header.Get("Quorate-Consistency"), AgeMS: r.Header.Get("Quorate-Age")}
	if !it.Found {
		return it, nil
	}
	if kind := r.Header.Get("Content-Type"); kind != "application/json" {
		it.ContentType = kind
	}
	if it.Value = r.Body; it.ContentType != "" || !json.Valid(r.Body) {
		it.Value, err = json.Marshal(r.Body) // Marshal encodes bytes as base64 text
	}
	return it, err
}

// getByBody works like get, but sends the key in the body of the request. It is for keys that are too long for a URL.
// The returned item has no consistency level and no age.
func (c *stateClient) getByBody(ctx context.Context, store, key string, o readOptions) (item, error) {
	all, err := c.bulk(ctx, store, []string{key}, o.query())
	if err != nil {
		return item{}, err
	}
	it := item{Key: key}
	for _, one := range all {
		if one.Error != "" {
			return item{}, fault.New(fault.Internal, "cli.state", one.Error)
		}
		if it.Found = len(one.Data) > 0; !it.Found { // a store may have no ETags
			continue
		}
		v, err := one.value()
		if err != nil {
			return item{}, command.Unreadable(c.Base, err)
		}
		it.Value, it.bytes, it.ETag = one.Data, v.Data, one.ETag
		it.ContentType, it.Expires = one.Metadata[state.MetadataContentType], one.Metadata[state.MetadataExpireTime]
	}
	return it, nil
}

// bulk reads several keys.
func (c *stateClient) bulk(ctx context.Context, store string, keys []string, q url.Values) ([]readItem, error) {
	body, err := json.Marshal(map[string]any{"keys": keys})
	if err != nil {
		return nil, err
	}
	r, err := c.Do(ctx, http.MethodPost, statePath(store, "")+"/bulk", q, nil, body)
	if err != nil {
		return nil, err
	}
	var items []readItem
	if err := json.Unmarshal(r.Body, &items); err != nil {
		return nil, command.Unreadable(c.Base, err)
	}
	return items, nil
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
	r, err := c.Change(ctx, http.MethodPost, statePath(store, ""), nil, nil,
		append(w.append([]byte{'['}, rest), ']'))
	return r.Header.Get("ETag"), err
}

// append appends w to body as a JSON object. The parameter rest must be the JSON encoding of w, in which the value is
// missing. The value is copied byte for byte, because a JSON encoder could change it.
func (w *write) append(body, rest []byte) []byte {
	body = append(append(body, `{"value":`...), w.value...)
	return append(append(body, ','), rest[1:]...)
}

// delete deletes a key. If the key is too long for a URL, delete sends it in the body of a transaction. Keys of actor
// state are always in the URL, because a transaction does not accept them. The query q may have the parameters
// consistency and metadata.actorState.
func (c *stateClient) delete(ctx context.Context, store, key, etag string, q url.Values) error {
	if !fitsPath(key) && !q.Has(actorState) {
		type operation struct {
			Operation string `json:"operation"`
			Request   write  `json:"request"`
		}
		w := write{Key: key, ETag: etag}
		if level := q.Get("consistency"); level != "" {
			w.Options = map[string]string{"consistency": level}
		}
		body, err := json.Marshal(map[string]any{"operations": []operation{{"delete", w}}})
		if err == nil {
			_, err = c.Change(ctx, http.MethodPost, statePath(store, "")+"/transaction", nil, nil, body)
		}
		return err
	}
	h := http.Header{}
	if etag != "" {
		h.Set("If-Match", etag)
	}
	_, err := c.Change(ctx, http.MethodDelete, statePath(store, key), q, h, nil)
	return err
}

// listed is one key of a listing.
type listed struct {
	Key     string `json:"key"`
	ETag    string `json:"etag"`
	Expires string `json:"ttlExpireTime,omitempty"`
	Error   string `json:"error,omitempty"` // why ETag and Expires are not known
}

// listFlags are the options of a listing.
type listFlags struct {
	prefix string
	actors bool // only actor state
}

// page requests one page of keys. For the first page, token is "". For each further page, it is the nextToken of the
// previous page. The nextToken of the last page is "".
func (c *stateClient) page(ctx context.Context, store string, f listFlags, token string, limit int) (keys []listed,
	nextToken string, err error) {
	q := url.Values{"limit": {strconv.Itoa(limit)}}
	setIf(q, "prefix", f.prefix)
	if f.actors {
		q.Set(actorState, "true")
	}
	setIf(q, "token", token)
	r, err := c.Do(ctx, http.MethodGet, statePath(store, ""), q, nil, nil)
	if err != nil {
		return nil, "", err
	}
	var page struct {
		Keys  []listed `json:"keys"`
		Token string   `json:"token"`
	}
	if err := json.Unmarshal(r.Body, &page); err != nil {
		return nil, "", command.Unreadable(c.Base, err)
	}
	return page.Keys, page.Token, nil
}

// statePath returns the URL path of a store, or of a key in the store if key is not empty. It escapes both names.
func statePath(store, key string) string {
	path := "/v1.0/state/" + url.PathEscape(store)
	if key != "" {
		path += "/" + url.PathEscape(key)
	}
	return path
}
