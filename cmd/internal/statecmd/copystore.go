package statecmd

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/cmd/internal/statecopy"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// copyStore is the source or the target of a copy. It accesses the store through the API of a node.
type copyStore struct {
	client *stateClient
	store  string
}

// announced is the maximum size in bytes of a body that is sent at once. A larger body is sent with the header Expect:
// 100-continue, after the node has accepted it. If the node refuses it as too large, the client can read the refusal
// and does not send the body.
const announced = 128 << 10

// actorToken is the prefix of page tokens for actor state. A listing first returns the pages of the application's
// keys, and then the pages of actor state.
const actorToken = "actors:"

// Page implements statecopy.Source.
func (s copyStore) Page(ctx context.Context, prefix, token string, limit int) ([]statecopy.Key, string, error) {
	token, actors := strings.CutPrefix(token, actorToken)
	page, next, err := s.client.page(ctx, s.store, listFlags{prefix: prefix, actors: actors}, token, limit)
	if err != nil {
		return nil, "", err
	}
	keys := make([]statecopy.Key, len(page))
	for i, l := range page {
		keys[i] = statecopy.Key{Name: l.Key, ETag: l.ETag, Err: l.Error}
	}
	if actors && next != "" || !actors && next == "" && prefix == "" {
		next = actorToken + next
	}
	return keys, next, nil
}

// query returns the parameters of a request about keys.
func query(keys ...string) url.Values {
	q := url.Values{}
	if slices.ContainsFunc(keys, func(k string) bool { return strings.Contains(k, state.Separator) }) {
		q.Set(actorState, "true")
	}
	return q
}

// Read implements statecopy.Source. If the node refuses to read a key, the value of that key contains the error.
func (s copyStore) Read(ctx context.Context, keys []string) (map[string]statecopy.Value, error) {
	q := query(keys...)
	q.Set("consistency", "strong")
	items, err := s.client.bulk(ctx, s.store, keys, q)
	switch {
	case fault.Is(err, fault.Invalid) && len(keys) == 1:
		return map[string]statecopy.Value{keys[0]: {Err: err}}, nil
	case fault.Is(err, fault.Invalid): // the values may be too large together
		out, err := s.Read(ctx, keys[:len(keys)/2])
		if err != nil {
			return nil, err
		}
		rest, err := s.Read(ctx, keys[len(keys)/2:])
		maps.Copy(out, rest)
		return out, err
	case err != nil:
		return nil, err
	}
	out := map[string]statecopy.Value{}
	for _, i := range items {
		switch {
		case i.Error != "":
			out[i.Key] = statecopy.Value{Err: errors.New(i.Error)}
		case len(i.Data) > 0: // a store may have no ETags
			if out[i.Key], err = i.value(); err != nil {
				return nil, command.Unreadable(s.client.Base, err)
			}
		}
	}
	return out, nil
}

// readItem is an item in the answer of a bulk read.
type readItem struct {
	Key, ETag, Error string
	Data             json.RawMessage
	Metadata         map[string]string
}

func (i *readItem) value() (v statecopy.Value, err error) {
	v.Data, v.Binary = i.Data, i.Metadata[state.MetadataContentType] != ""
	if v.Binary {
		var text string
		if err = json.Unmarshal(i.Data, &text); err == nil {
			v.Data, err = base64.StdEncoding.DecodeString(text)
		}
	}
	if at := i.Metadata[state.MetadataExpireTime]; err == nil && at != "" {
		v.Expires, err = time.Parse(time.RFC3339, at)
	}
	return v, err
}

// Write implements statecopy.Target. It saves items in one request, as one atomic write.
func (s copyStore) Write(ctx context.Context, items []statecopy.Item, createOnly bool) error {
	body, keys := []byte{'['}, make([]string, len(items))
	for n, i := range items {
		w, err := copied(i, createOnly)
		if err != nil {
			return err
		}
		rest, err := json.Marshal(w)
		if err != nil {
			return err
		}
		if n > 0 {
			body = append(body, ',')
		}
		body, keys[n] = w.append(body, rest), i.Key
	}
	body = append(body, ']')
	h := http.Header{}
	if len(body) > announced {
		h.Set("Expect", "100-continue")
	}
	_, err := s.client.Change(ctx, http.MethodPost, statePath(s.store, ""), query(keys...), h, body)
	return err
}

// copied returns the request that writes an item to the target with strong consistency. In Quorate's own store, every
// copied item is therefore on the disks of a majority. If createOnly is true, the store refuses to overwrite a key.
func copied(i statecopy.Item, createOnly bool) (write, error) {
	f, value, err := setFlags{createOnly: createOnly, binary: i.Binary, consistency: "strong"}, i.Value, error(nil)
	if i.Binary {
		value, err = json.Marshal(base64.StdEncoding.EncodeToString(i.Value))
	}
	w := f.write(i.Key, value)
	if i.Expires.IsZero() {
		w.Metadata[state.MetadataTTL] = "0" // the item never expires, so the default of the store does not apply
	} else {
		// A TTL in seconds would depend on the time until the node gets the request, and has a smaller range.
		w.Metadata[state.MetadataExpireTime] = i.Expires.UTC().Format(time.RFC3339)
	}
	return w, err
}

// Delete implements statecopy.Target.
func (s copyStore) Delete(ctx context.Context, k statecopy.Key) error {
	q := query(k.Name)
	q.Set("consistency", "strong")
	return s.client.delete(ctx, s.store, k.Name, k.ETag, q)
}
