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

// parse is parseSession.
func (t *tokens) parse(token string, cluster uint64) (s session, foreign bool, err error) {
	if d := t.last.Load(); d != nil && d.text == token && d.cluster == cluster {
		return d.session, false, nil
	}
	s, foreign, err = parseSession(token, cluster)
	if err == nil && !foreign && token != "" {
		t.last.Store(&decoded{token, cluster, s})
	}
	return s, foreign, err
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
