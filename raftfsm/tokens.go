package raftfsm

import "sync/atomic"

// tokens remembers the session token that was read or made last, decoded. All requests of an
// application carry the session of its node, which changes with writes alone: most of them
// carry the same token, and take it along as it is. Safe for concurrent use; the zero
// value remembers nothing.
type tokens struct{ last atomic.Pointer[decoded] }

// decoded is a token of a cluster. It never changes.
type decoded struct {
	text    string
	cluster uint64
	session session
}

// parse is parseSession, and remembers what it read.
func (t *tokens) parse(token string, cluster uint64) (s session, foreign bool, err error) {
	if s, ok := t.known(token, cluster); ok {
		return s, false, nil
	}
	s, foreign, err = parseSession(token, cluster)
	if err == nil && !foreign && token != "" {
		t.last.Store(&decoded{token, cluster, s})
	}
	return s, foreign, err
}

// known is the session of a token that is remembered.
func (t *tokens) known(token string, cluster uint64) (session, bool) {
	if d := t.last.Load(); d != nil && d.text == token && d.cluster == cluster {
		return d.session, true
	}
	return nil, false
}

// own is the session of a token of the cluster; false for any other. It remembers nothing:
// of tokens that are merged the result is what comes back.
func (t *tokens) own(token string, cluster uint64) (session, bool) {
	if s, ok := t.known(token, cluster); ok {
		return s, true
	}
	s, foreign, err := parseSession(token, cluster)
	return s, err == nil && !foreign
}

// merge is the token of what either of two tokens of the cluster has seen; false if one of
// them is none.
func (t *tokens) merge(a, b string, cluster uint64) (string, bool) {
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
	token := first.token(cluster)
	t.last.Store(&decoded{token, cluster, first})
	return token, true
}

// after is the token of a session that has seen n, too. token is that of s; empty if there
// is none that could be given back.
func (t *tokens) after(token string, s session, n seen, cluster uint64) string {
	if token != "" && s.holds(n) {
		return token
	}
	s = s.with(n)
	token = s.token(cluster)
	t.last.Store(&decoded{token, cluster, s})
	return token
}
