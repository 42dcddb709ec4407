package session

import "sync/atomic"

// Cache contains the decoded form of the session token that was decoded or created last. A token changes only when a
// request adds a newer position, so many requests have the same token as the previous request. A Cache is safe for
// concurrent use. Its zero value is empty.
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

// own decodes a token of the given cluster. It returns false for any other token. It does not add the token to the
// cache.
func (t *Cache) own(token string, cluster Cluster) (Session, bool) {
	if s, ok := t.known(token, cluster); ok {
		return s, true
	}
	s, foreign, err := Parse(token, cluster)
	return s, err == nil && !foreign
}

// Merge returns a token that contains the positions of a and b, without those that others cover. It returns false if a
// or b is invalid or belongs to another cluster.
func (t *Cache) Merge(a, b string, cluster Cluster) (string, bool) {
	return t.MergeIf(a, b, cluster, func(Seen) bool { return true })
}

// MergeIf works like Merge, but uses a position of b only if accept returns true for it. It calls accept only for
// positions that those of a do not cover.
func (t *Cache) MergeIf(a, b string, cluster Cluster, accept func(Seen) bool) (string, bool) {
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
	changed := false
	for _, n := range second {
		if !first.Holds(n) && accept(n) {
			first, changed = first.With(n), true
		}
	}
	if !changed {
		return a, true
	}
	token := first.Token(cluster.Tag)
	t.last.Store(&decoded{token, cluster, first})
	return token, true
}

// After returns the token of the session s with the position n added. token is the current token of s, or empty if it
// is not known. If n does not change s, After returns that token.
func (t *Cache) After(token string, s Session, n Seen, cluster Cluster) string {
	if token != "" && s.Holds(n) {
		return token
	}
	s = s.With(n)
	token = s.Token(cluster.Tag)
	t.last.Store(&decoded{token, cluster, s})
	return token
}
