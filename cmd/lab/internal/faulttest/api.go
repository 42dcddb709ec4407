package faulttest

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Level is the consistency of a request.
type Level string

// The levels.
const (
	Strong   Level = "strong"
	Eventual Level = "eventual"
)

// Store is the state store of all requests, which every node has by default.
const Store = "statestore"

// Condition is the condition of a write. The zero value is no condition.
type Condition struct {
	ETag   string // that the key must have; empty = any
	Absent bool   // the key must not exist
}

// Write is one change of one key. If Value is empty, the change deletes the key.
type Write struct {
	Key, Value string
	Condition
}

// Request is one request to the state API. Get, GetAll, Set, One, Transact, Expiring and SetAll return a Request.
type Request struct {
	Method, Path, Body string
	Header             map[string]string
	App                int // index in Options.Apps, from 1; 0 = the first application of the node
	reads              bool
}

// Get returns a request that reads one key.
func Get(key string, level Level) Request {
	return Request{Method: "GET", Path: "/v1.0/state/" + Store + "/" + key + "?consistency=" + string(level),
		reads: true}
}

// GetAll returns a request that reads several keys.
func GetAll(keys []string, level Level) Request {
	return Request{Method: "POST", Path: "/v1.0/state/" + Store + "/bulk?consistency=" + string(level),
		Body: text(map[string]any{"keys": keys}), reads: true}
}

// Set returns a request that saves one key without a condition.
func Set(key, value string, level Level) Request { return One(Write{Key: key, Value: value}, level) }

// One returns a request that makes one change.
func One(w Write, level Level) Request {
	if w.Value == "" {
		r := Request{Method: "DELETE", Path: "/v1.0/state/" + Store + "/" + w.Key + "?consistency=" + string(level)}
		if w.ETag != "" {
			r.Header = map[string]string{"If-Match": w.ETag}
		}
		return r
	}
	item := w.item()
	item["options"].(map[string]string)["consistency"] = string(level)
	return Request{Method: "POST", Path: "/v1.0/state/" + Store, Body: text([]any{item})}
}

// Transact returns a request that makes several changes atomically.
func Transact(writes ...Write) Request {
	operations := make([]any, len(writes))
	for i, w := range writes {
		kind := "upsert"
		if w.Value == "" {
			kind = "delete"
		}
		operations[i] = map[string]any{"operation": kind, "request": w.item()}
	}
	return Request{Method: "POST", Path: "/v1.0/state/" + Store + "/transaction",
		Body: text(map[string]any{"operations": operations})}
}

// strong reports whether the request must be linearizable.
func (r Request) strong() bool {
	return !strings.Contains(r.Path, "consistency=eventual") && !strings.Contains(r.Body, `"consistency":"eventual"`)
}

// Expiring returns a request that saves one key with strong consistency. The key expires after the given number of
// seconds.
func Expiring(key, value string, seconds int) Request {
	item := Write{Key: key, Value: value}.item()
	item["metadata"] = map[string]string{"ttlInSeconds": strconv.Itoa(seconds)}
	item["options"].(map[string]string)["consistency"] = string(Strong)
	return Request{Method: "POST", Path: "/v1.0/state/" + Store, Body: text([]any{item})}
}

// SetAll returns a request that saves several keys, each under the condition of its write.
func SetAll(writes []Write, level Level) Request {
	items := make([]any, len(writes))
	for i, w := range writes {
		item := w.item()
		item["options"].(map[string]string)["consistency"] = string(level)
		items[i] = item
	}
	return Request{Method: "POST", Path: "/v1.0/state/" + Store, Body: text(items)}
}

// With returns the request with an additional header.
func (r Request) With(name, value string) Request {
	if value == "" {
		return r
	}
	h := map[string]string{name: value}
	for k, v := range r.Header {
		h[k] = v
	}
	r.Header = h
	return r
}

func (w Write) item() map[string]any {
	options := map[string]string{}
	item := map[string]any{"key": w.Key, "options": options}
	if w.Value != "" {
		item["value"] = w.Value
	}
	if w.ETag != "" {
		item["etag"] = w.ETag
	}
	if w.Absent {
		options["concurrency"] = "first-write"
	}
	return item
}

func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // only strings and maps of strings
	}
	return string(b)
}

// Outcome is the result of a request.
type Outcome uint8

// The outcomes.
const (
	Done     Outcome = iota + 1
	Conflict         // a condition failed; nothing was changed
	Refused          // the request was certainly not applied
	Unknown          // the request was applied, will be applied, or never will be
)

// Item has the value and the ETag of a key that was read.
type Item struct {
	Value, ETag string // empty = absent
}

// Answer is the response of a node, or the lack of one.
type Answer struct {
	Outcome Outcome
	Items   []Item // one for Get, one per key for GetAll
	ETag    string // of the saved value, if the store returns it
	Level   string // Quorate-Consistency
	Session string // Quorate-Session
	Status  int
	Text    string // the error
}

// Stale reports whether the response is marked stale.
func (a Answer) Stale() bool { return a.Level == "stale" }

// Err returns nil if the outcome is Done. Otherwise it returns an error with the status and the text of the response.
func (a Answer) Err() error {
	if a.Outcome == Done {
		return nil
	}
	return fmt.Errorf("status %d: %s", a.Status, a.Text)
}

// failure converts an error response of the API to an Answer. If the error has no reason that failure knows, the
// outcome is Refused for a read, and Unknown for a write.
func failure(r Request, status int, body []byte) Answer {
	a := Answer{Status: status, Text: string(body), Outcome: Unknown}
	var e struct {
		Details []struct {
			Reason string `json:"reason"`
		} `json:"details"`
	}
	_ = json.Unmarshal(body, &e) // without JSON there is no reason
	reason := ""
	if len(e.Details) > 0 {
		reason = e.Details[0].Reason
	}
	switch reason {
	case "conflict":
		a.Outcome = Conflict
	case "no_quorum", "timeout", "read_only", "format_blocked", "overloaded", "starting", "not_ready":
		a.Outcome = Refused
	}
	if r.reads && a.Outcome == Unknown {
		a.Outcome = Refused // a read changes nothing
	}
	return a
}

// success parses a successful response.
func success(r Request, status int, etag string, body []byte) (Answer, error) {
	a := Answer{Status: status, Outcome: Done, ETag: etag}
	switch {
	case r.Method == "GET" && status == 204:
		a.Items = []Item{{}}
	case r.Method == "GET":
		var v string
		err := json.Unmarshal(body, &v)
		a.Items = []Item{{Value: v, ETag: etag}}
		return a, err
	case status == 200: // bulk read
		var items []struct {
			Data  *string `json:"data"`
			ETag  string  `json:"etag"`
			Error string  `json:"error"`
		}
		if err := json.Unmarshal(body, &items); err != nil {
			return a, err
		}
		for _, i := range items {
			if i.Error != "" {
				return a, errors.New(i.Error)
			}
			item := Item{ETag: i.ETag}
			if i.Data != nil {
				item.Value = *i.Data
			}
			a.Items = append(a.Items, item)
		}
	}
	return a, nil
}
