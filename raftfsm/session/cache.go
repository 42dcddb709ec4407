package session

import "sync/atomic"

// Cache contains the decoded form of the session token that was decoded or created last. Only writes change a token,
// so most requests have the same token as the request before. A Cache is safe for concurrent use. Its zero value is
// empty.
type Cache struct{ last atomic.Pointer[decoded] }

// decoded is a token of a cluster and its session. It never changes.
type decoded struct {
	text    string
	cluster uint64
	session Session
}

// Parse does the same as the function Parse, but decodes the last token only once.
func (t *Cache) Parse(token string, cluster uint64) (s Session, foreign bool, err error) {
	if s, ok := t.known(token, cluster); ok {
		return s, false, nil
	}
	s, foreign, err = Parse(token, cluster)
	if err == nil && !foreign && token != "" {
		t.last.Store(&decoded{token, cluster, s})
	}
	return s, foreign, err
}

// known returns the session of a cached token.
func (t *Cache) known(token string, cluster uint64) (Session, bool) {
	if d := t.last.Load(); d != nil && d.text == token && d.cluster == cluster {
		return d.session, true
	}
	return nil, false
}

// own decodes a token of the given cluster. It returns false for any other token. It does not add the token to the
// cache.
func (t *Cache) own(token string, cluster uint64) (Session, bool) {
	if s, ok := t.known(token, cluster); ok {
		return s, true
	}
	s, foreign, err := Parse(token, cluster)
	return s, err == nil && !foreign
}

// Merge returns a token that contains the newer position of a and b for each group. It returns false if a or b is
// invalid or belongs to another cluster.
func (t *Cache) Merge(a, b string, cluster uint64) (string, bool) {
	first, ok := t.own(a, cluster)
	if !ok {
		return "", false
	}
	if a == b {
		return a, true
	}
	second, ok := t.own(b, cluster)
	if !ok {
		return "", false
	}
	for _, n := range second {
		first = first.with(n)
	}
	if len(first) == 0 {
		return "", true
	}
	token := first.Token(cluster)
	t.last.Store(&decoded{token, cluster, first})
	return token, true
}

// After returns the token of session s after the session has seen position n. token is the current token of s, or
// empty. After returns the same token if n does not change the session.
func (t *Cache) After(token string, s Session, n Seen, cluster uint64) string {
	if token != "" && s.holds(n) {
		return token
	}
	s = s.with(n)
	token = s.Token(cluster)
	t.last.Store(&decoded{token, cluster, s})
	return token
}
