package session

import (
	"slices"
	"sync/atomic"
)

// Cache remembers one session token with its decoded form: the token that was decoded or created last. A token changes
// only when a request adds a newer position, so many requests have the same token as the previous request. A Cache is
// safe for concurrent use. Its zero value is empty.
type Cache struct{ last atomic.Pointer[decoded] }

// decoded is the text of a token, with its cluster and its session. A decoded is never modified.
type decoded struct {
	text    string
	cluster Cluster
	session Session
}

// Parse works like the function Parse, but does not decode the cached token again.
func (t *Cache) Parse(token string, cluster Cluster) (s Session, foreign bool, err error) {
	if s, ok := t.known(token, cluster); ok {
		return s, false, nil
	}
	s, foreign, err = Parse(token, cluster)
	if err == nil && !foreign && token != "" {
		t.last.Store(&decoded{token, cluster, s})
	}
	return s, foreign, err
}

// known returns the session of the token if the token is cached. Otherwise it returns false.
func (t *Cache) known(token string, cluster Cluster) (Session, bool) {
	if d := t.last.Load(); d != nil && d.text == token && d.cluster == cluster {
		return d.session, true
	}
	return nil, false
}

// own decodes a token of the given cluster, but does not add the token to the cache. It returns false if the token is
// invalid or belongs to another cluster.
func (t *Cache) own(token string, cluster Cluster) (Session, bool) {
	if s, ok := t.known(token, cluster); ok {
		return s, true
	}
	s, foreign, err := Parse(token, cluster)
	return s, err == nil && !foreign
}

// Merge returns a token that contains the positions of the tokens a and b. It leaves out positions that are not needed
// because other positions cover them. Merge returns false if a or b is invalid or belongs to another cluster.
func (t *Cache) Merge(a, b string, cluster Cluster) (string, bool) {
	have, ok := t.own(a, cluster)
	if !ok {
		return "", false
	}
	if a == b {
		return a, true
	}
	more, ok := t.own(b, cluster)
	if !ok {
		return "", false
	}
	next := have
	for _, n := range more {
		next = next.With(n)
	}
	return t.changed(a, have, next, cluster), true
}

// Answer returns the new token of a session after an answer has arrived. own is the current token of the session, sent
// is the token of the request, and got is the token of the answer. The new token differs from the current one in two
// ways:
//
//   - It lacks the positions that the answer has settled (see Session.Settled).
//   - It contains the positions of the answer. A position that was also in the request is first passed to
//     confirm, which returns the position to add, or false to add none.
//
// Answer returns false if own or got is invalid or belongs to another cluster.
func (t *Cache) Answer(own, sent, got string, cluster Cluster, confirm func(Seen) (Seen, bool)) (string, bool) {
	have, ok := t.own(own, cluster)
	if !ok {
		return "", false
	}
	after, ok := t.own(got, cluster)
	if !ok {
		return "", false
	}
	request, _ := t.own(sent, cluster) // empty if it cannot be read
	next := have.Unsettled(request.Settled(after), after)
	for _, n := range after {
		if next.Holds(n) {
			continue
		}
		ok := true
		if slices.Contains(request, n) {
			n, ok = confirm(n)
		}
		if ok {
			next = next.With(n)
		}
	}
	return t.changed(own, have, next, cluster), true
}

// changed returns the token of the session next. The parameter token is the token of the session have. If next equals
// have, changed returns token. If next is empty, it returns "". Otherwise it encodes next and adds the new token to the
// cache.
func (t *Cache) changed(token string, have, next Session, cluster Cluster) string {
	if slices.Equal(have, next) {
		return token
	}
	if len(next) == 0 {
		return ""
	}
	token = next.Token(cluster.Tag)
	t.last.Store(&decoded{token, cluster, next})
	return token
}

// Shared returns the token to send to a client or to another application. The parameter token is the full token of the
// session, and sent is the token that the receiver has sent, or empty. Session.Shared determines which positions the
// result contains. If token cannot be read, Shared returns it unchanged.
func (t *Cache) Shared(token, sent string, cluster Cluster) string {
	s, ok := t.own(token, cluster)
	if !ok || !s.hasSeveral() {
		return token
	}
	theirs, _ := t.own(sent, cluster) // empty if it cannot be read
	return t.changed(token, s, s.Shared(theirs), cluster)
}

// After returns the token of the session s after the position n is added. token is the current token of s, or empty if
// it is not known. If the session already has the position, or one that covers it, the result is the current token.
//
// The result always covers the position, because the position comes from the answer of a store. A client may have
// invented the positions of later leaders in s. If s has too many positions of the group, After drops one of these to
// make room for n.
func (t *Cache) After(token string, s Session, n Seen, cluster Cluster) string {
	if token != "" && s.Holds(n) {
		return token
	}
	next := s.With(n)
	if !next.Holds(n) { // With has dropped n, because all maxLeaders positions in s are of later leaders
		first := slices.IndexFunc(s, func(e Seen) bool { return e.Group == n.Group })
		next = slices.Delete(slices.Clone(s), first, first+1).With(n)
	}
	token = next.Token(cluster.Tag)
	t.last.Store(&decoded{token, cluster, next})
	return token
}
