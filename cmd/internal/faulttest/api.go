package faulttest

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Level is the consistency a request asks for.
type Level string

// The levels.
const (
	Strong   Level = "strong"
	Eventual Level = "eventual"
)

// Store is the state store that all requests go to: the one a node has by default.
const Store = "statestore"

// Condition is what must hold for a write of a key.
type Condition struct {
	ETag   string // the current one, unless empty
	Absent bool   // the key must not exist
}

// Write is one change of one key. An empty value deletes it.
type Write struct {
	Key, Value string
	Condition
}

// Request is one call of the state API. Make one with Get, Set and their like.
type Request struct {
	Method, Path, Body string
	Header             map[string]string
	App                int // of Options.Apps, from 1; 0 = the first application of the node
	reads              bool
}

// Get reads one key.
func Get(key string, level Level) Request {
	return Request{Method: "GET", Path: "/v1.0/state/" + Store + "/" + key + "?consistency=" + string(level), reads: true}
}

// GetAll reads several keys at one moment.
func GetAll(keys []string, level Level) Request {
	return Request{Method: "POST", Path: "/v1.0/state/" + Store + "/bulk?consistency=" + string(level), Body: text(map[string]any{"keys": keys}), reads: true}
}

// Set saves one key, whatever it holds.
func Set(key, value string, level Level) Request { return One(Write{Key: key, Value: value}, level) }

// One makes one change.
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

// Transact makes several changes, all or none.
func Transact(writes ...Write) Request {
	operations := make([]any, len(writes))
	for i, w := range writes {
		kind := "upsert"
		if w.Value == "" {
			kind = "delete"
		}
		operations[i] = map[string]any{"operation": kind, "request": w.item()}
	}
	return Request{Method: "POST", Path: "/v1.0/state/" + Store + "/transaction", Body: text(map[string]any{"operations": operations})}
}

// strong reports whether the outcome is to be a matter of all.
func (r Request) strong() bool {
	return !strings.Contains(r.Path, "consistency=eventual") && !strings.Contains(r.Body, `"consistency":"eventual"`)
}

// Expiring saves one key that is to be gone after a life time in seconds.
func Expiring(key, value string, seconds int) Request {
	item := Write{Key: key, Value: value}.item()
	item["metadata"] = map[string]string{"ttlInSeconds": strconv.Itoa(seconds)}
	item["options"].(map[string]string)["consistency"] = string(Strong)
	return Request{Method: "POST", Path: "/v1.0/state/" + Store, Body: text([]any{item})}
}

// SetAll saves several keys at one moment, whatever they hold.
func SetAll(writes []Write, level Level) Request {
	items := make([]any, len(writes))
	for i, w := range writes {
		item := w.item()
		item["options"].(map[string]string)["consistency"] = string(level)
		items[i] = item
	}
	return Request{Method: "POST", Path: "/v1.0/state/" + Store, Body: text(items)}
}

// With returns the request with a header more.
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
		panic(err) // strings and maps of them only
	}
	return string(b)
}

// Outcome says what became of a request.
type Outcome uint8

// The outcomes.
const (
	Done     Outcome = iota + 1
	Conflict         // a condition did not hold; nothing was changed
	Refused          // surely not done
	Unknown          // done, or to be done, or not
)

// Item is a key as it was read.
type Item struct {
	Value, ETag string // empty = absent
}

// Answer is what a node said, or that it said nothing.
type Answer struct {
	Outcome Outcome
	Items   []Item // of Get one, of GetAll one for each key
	ETag    string // of the value that was saved, where the store tells it
	Level   string // Quorate-Consistency
	Session string // Quorate-Session
	Status  int
	Text    string // what went wrong
}

// Stale reports whether the answer carries no promise.
func (a Answer) Stale() bool { return a.Level == "stale" }

// Err is nil if the request was done.
func (a Answer) Err() error {
	if a.Outcome == Done {
		return nil
	}
	return fmt.Errorf("status %d: %s", a.Status, a.Text)
}

// failure reads an error of the API. What it does not know counts as unknown.
func failure(r Request, status int, body []byte) Answer {
	a := Answer{Status: status, Text: string(body), Outcome: Unknown}
	var e struct {
		Details []struct {
			Reason string `json:"reason"`
		} `json:"details"`
	}
	_ = json.Unmarshal(body, &e) // then there is no reason
	reason := ""
	if len(e.Details) > 0 {
		reason = e.Details[0].Reason
	}
	switch reason {
	case "conflict":
		a.Outcome = Conflict
	case "no_quorum", "timeout", "read_only", "overloaded", "starting", "not_ready":
		a.Outcome = Refused
	}
	if r.reads && a.Outcome == Unknown {
		a.Outcome = Refused // a read that told nothing
	}
	return a
}

// success reads a good answer.
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
	case status == 200: // bulk
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
