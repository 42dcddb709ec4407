package api

import (
	"context"
	"encoding/base64"
	"strconv"
	"strings"

	"github.com/quorate/quorate/component/state"
)

// ListRequest is a request for one page of the application's own keys, in the order of the store (see
// state.Lister).
type ListRequest struct {
	Store  string
	Prefix string // prefix of the application's own keys; may be empty
	Limit  int    // keys of the page; 0 = DefaultPage
	Token  string // Token of the previous page; empty = from the start
	ReadOptions
}

// Page is one page of a listing. Items have the fields Key, ETag and Expires.
type Page struct {
	Items []state.Item
	Token string // token of the next page; empty = there is none
	state.Proof
}

// List returns one page of the application's keys, without actor state. If the request has the metadata
// actorState=true, List returns only actor state.
func (s *State) List(ctx context.Context, r ListRequest) (Page, error) {
	inst, failure := s.store(r.Store)
	if failure != nil {
		return Page{}, failure
	}
	store := state.AbilitiesOf(inst.Store).Lister
	if store == nil {
		return Page{}, listingNotSupported(inst.Name)
	}
	v := s.enter(r.Trace, &r.Session)
	keys, failure := s.keyspace(inst, r.Metadata)
	if failure != nil {
		return Page{}, failure
	}
	l := listing{store: store, inst: inst, keys: keys}
	if failure := l.prepare(r, s.limits); failure != nil {
		return Page{}, failure
	}
	page, err := l.run(ctx)
	if err != nil {
		return Page{}, opList.failed(err, inst.Name, "", "")
	}
	v.leave(&page.Proof)
	return page, nil
}

// listing builds one page from one or several pages of the store.
type listing struct {
	store   state.Lister
	inst    *state.Instance
	keys    keyspace
	request state.ListRequest
	items   []state.Item
	worth   proof
}

func (l *listing) prepare(r ListRequest, limits Limits) *Error {
	options, failure := readOptions(l.inst, r.ReadOptions)
	if failure != nil {
		return failure
	}
	if r.Limit < 0 {
		return malformed("limit must be a whole number from 1 to " + strconv.Itoa(limits.PageSize))
	}
	if r.Limit > limits.PageSize {
		return Exceeded("too many keys for one page", r.Limit, limits.PageSize)
	}
	if r.Limit == 0 {
		r.Limit = min(DefaultPage, limits.PageSize)
	}
	if r.Prefix != "" && !l.keys.actors {
		if err := state.ValidateKey(r.Prefix); err != nil {
			return illegalKey(l.inst.Name, "prefix", "prefix: ", err)
		}
	}
	stored := l.keys.prefix(r.Prefix)
	if stored == "" {
		return malformed("state store " + l.inst.Name +
			" has keyPrefix none, so its keys tell no owner: list them with a prefix")
	}
	after, failure := l.after(r)
	if failure != nil {
		return failure
	}
	l.request = state.ListRequest{Prefix: stored, After: after, Limit: r.Limit, ReadOptions: options}
	return nil
}

// after returns the stored key after which the listing continues. This is the key in the page token of the request, or
// "" for the first page.
func (l *listing) after(r ListRequest) (string, *Error) {
	if r.Token == "" {
		return "", nil
	}
	key, ok := l.keys.parseToken(r.Token)
	if !ok || !strings.HasPrefix(key, r.Prefix) {
		return "", malformed("token is not one of a page of this listing (use the token as it was given, with the " +
			"same prefix)")
	}
	return l.keys.stored(key), nil
}

// run reads from the store until the page is full or no keys are left. Each read continues after the last key of the
// previous read, so the loop ends.
func (l *listing) run(ctx context.Context) (Page, error) {
	wanted := l.request.Limit
	for {
		l.request.Limit = wanted - len(l.items)
		part, err := l.store.List(ctx, l.request)
		if err != nil {
			return Page{}, err
		}
		l.worth.add(part.Proof)
		skipped := l.take(part.Items)
		switch {
		case len(part.Items) == 0, !part.More && !skipped:
			return l.page(""), nil
		case len(l.items) >= wanted:
			return l.page(makeToken(l.items[len(l.items)-1].Key)), nil
		}
	}
}

func (l *listing) page(token string) Page {
	return Page{Items: l.items, Token: token, Proof: l.worth.Proof}
}

// take adds items to the page. When it reaches an item of actor state, it stops and returns true, and the next read
// skips all state of that actor type.
//
// In a listing of actor state, take omits all items that are not actor state, and always returns false.
func (l *listing) take(items []state.Item) (skipped bool) {
	for _, item := range items {
		key, own := l.keys.original(item.Key)
		if !own && !l.keys.actors {
			l.request.After = l.pastActor(item.Key)
			return true
		}
		if l.request.After = item.Key; own {
			item.Key = key
			l.items = append(l.items, item)
		}
	}
	return false
}

// pastActor returns a key that sorts after all state of one actor type, so that a listing can continue after it. stored
// is any stored key of that type. The result ends with the byte 0xff, which does not occur in UTF-8.
func (l *listing) pastActor(stored string) string {
	base := len(l.keys.prefix(""))
	i := strings.Index(stored[base:], state.Separator)
	if i < 0 {
		return stored
	}
	return stored[:base+i+len(state.Separator)] + "\xff"
}

// tokenVersion begins every page token, so that later formats can be distinguished.
const tokenVersion = "1"

func makeToken(key string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(tokenVersion + key))
}

func (k keyspace) parseToken(token string) (key string, ok bool) {
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return "", false
	}
	key, ok = strings.CutPrefix(string(raw), tokenVersion)
	return key, ok && k.check(key) == nil
}
