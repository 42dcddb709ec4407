package cli

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/quorate/quorate/cmd/internal/redisimport"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/rest"
)

// importTarget is a store behind the API of a node, for an import.
type importTarget struct {
	client *stateClient
	store  string
}

// announced is the size of a body from which on the node is asked first whether it would
// take it: one that is too large is refused before it is sent, and the refusal arrives.
const announced = 128 << 10

// Write saves items in one request, which is one atomic write.
func (t importTarget) Write(ctx context.Context, items []redisimport.Item, createOnly bool) error {
	body := []byte{'['}
	for n, i := range items {
		w, err := imported(i, createOnly)
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
		body = w.append(body, rest)
	}
	body = append(body, ']')
	h := http.Header{}
	if len(body) > announced {
		h.Set("Expect", "100-continue")
	}
	_, err := t.client.do(ctx, http.MethodPost, statePath(t.store, ""), nil, h, body)
	return err
}

// imported is the request for one item. It is strong: what is reported as copied is on the
// disks of a majority.
func imported(i redisimport.Item, createOnly bool) (write, error) {
	f, value, err := setFlags{createOnly: createOnly, ttl: i.TTL, binary: i.Binary, consistency: "strong"}, i.Value, error(nil)
	if i.Binary {
		value, err = json.Marshal(base64.StdEncoding.EncodeToString(i.Value))
	}
	w := f.write(i.Key, value)
	if i.TTL == 0 {
		w.Metadata["ttlInSeconds"] = "0" // it did not expire, whatever the store's default is
	}
	return w, err
}

// Present asks which keys the store has.
func (t importTarget) Present(ctx context.Context, keys []string) (map[string]bool, error) {
	body, err := json.Marshal(map[string]any{"keys": keys})
	if err != nil {
		return nil, err
	}
	r, err := t.client.do(ctx, http.MethodPost, statePath(t.store, "")+"/bulk", nil, nil, body)
	if err != nil {
		return nil, err
	}
	var items []struct{ Key, ETag, Error string }
	if err := json.Unmarshal(r.body, &items); err != nil {
		return nil, unreadable(t.client.base, err)
	}
	there := map[string]bool{}
	for _, i := range items {
		if i.Error != "" {
			return nil, &fault.Error{Code: fault.Unavailable, Op: "cli.import", Key: i.Key, Msg: "key " + strconv.Quote(i.Key) + " cannot be looked up: " + i.Error}
		}
		there[i.Key] = i.ETag != ""
	}
	return there, nil
}

// Pauses between attempts of a write.
const (
	firstPause   = 250 * time.Millisecond
	longestPause = 4 * time.Second
)

// patience lets a failed write be repeated for so long, with growing pauses.
func patience(most time.Duration) func(context.Context, int) bool {
	return func(ctx context.Context, attempt int) bool {
		pause, before := firstPause, time.Duration(0)
		for range attempt - 1 {
			before += pause
			pause = min(2*pause, longestPause)
		}
		if before+pause > most {
			return false
		}
		return rest.Pause(ctx, pause)
	}
}

// keyPrefix reads how the old runtime made its keys, in the words of its component file.
func keyPrefix(text string, owner state.Owner) (state.KeyPrefix, error) {
	p, err := state.ParseKeyPrefix(text)
	if err == nil && p.String() == state.KeyPrefixNamespace && owner.Namespace == "" {
		err = usagef("--key-prefix namespace needs --from-namespace, the namespace of the old runtime")
	}
	return p, usage(err)
}
