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

// importTarget is the target of an import: a store, written through the API of a node.
type importTarget struct {
	client *stateClient
	store  string
}

// announced is a size in bytes. A request with a body of at least this size is sent with Expect:
// 100-continue. If the body is too large, the node then refuses the request before the body is
// sent, and the client can read the refusal.
const announced = 128 << 10

// Write saves items in one request, as one atomic write.
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

// imported returns the write request for one item. The write is strong, so an item that is reported
// as copied is on the disks of a majority.
func imported(i redisimport.Item, createOnly bool) (write, error) {
	f, value, err := setFlags{createOnly: createOnly, ttl: i.TTL, binary: i.Binary, consistency: "strong"}, i.Value,
		error(nil)
	if i.Binary {
		value, err = json.Marshal(base64.StdEncoding.EncodeToString(i.Value))
	}
	w := f.write(i.Key, value)
	if i.TTL == 0 {
		w.Metadata["ttlInSeconds"] = "0" // it has no TTL in Redis, so the default of the store does not apply
	}
	return w, err
}

// Present returns which of the keys the store already has.
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
			return nil, &fault.Error{Code: fault.Unavailable, Op: "cli.import", Key: i.Key,
				Msg: "key " + strconv.Quote(i.Key) + " cannot be looked up: " + i.Error}
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

// patience returns a function for Import.Pause. It waits before attempt number attempt+1 and
// returns true. The pauses double up to a limit. The function returns false when all pauses
// together would exceed most, or when ctx ends.
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

// keyPrefix parses the keyPrefix setting of a Dapr Redis component.
func keyPrefix(text string, owner state.Owner) (state.KeyPrefix, error) {
	p, err := state.ParseKeyPrefix(text)
	if err == nil && p.String() == state.KeyPrefixNamespace && owner.Namespace == "" {
		err = usagef("--key-prefix namespace needs --from-namespace, the namespace of the application in Dapr")
	}
	return p, usage(err)
}
