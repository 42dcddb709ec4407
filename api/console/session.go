package console

import (
	"crypto/rand"
	"crypto/subtle"
	"net/http"
	"sync"
	"time"
)

const (
	loginTime   = 10 * time.Minute // how long a login link can be used
	sessionTime = 12 * time.Hour   // how long a session lasts without a request
	maxSessions = 32
	maxLogins   = 32
)

// session is one browser that has signed in.
type session struct {
	csrf string // token in every form; a request that changes something must send it
	seen time.Time
}

// sessions holds the sessions of signed-in browsers and the unused tokens of sign-in links. Both are lost when the node
// stops. The type sessions is safe for concurrent use.
type sessions struct {
	cookie string // name of the cookie: one for each port, because browsers share cookies between ports
	now    func() time.Time

	mu     sync.Mutex
	logins map[string]time.Time // by token, with the time of issue
	open   map[string]*session  // by the value of the cookie
}

func newSessions(cookie string, now func() time.Time) *sessions {
	return &sessions{cookie: cookie, now: now, logins: map[string]time.Time{}, open: map[string]*session{}}
}

// login returns a new token for one sign-in, and the time at which the token expires. If there are too many unused
// tokens, it drops the oldest.
func (s *sessions) login() (token string, expires time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	dropOldest(s.logins, maxLogins, func(at time.Time) time.Time { return at })
	token = rand.Text()
	s.logins[token] = now
	return token, now.Add(loginTime)
}

// enter exchanges a sign-in token for a session and sets the session cookie. It returns false if the token is
// invalid.
func (s *sessions) enter(w http.ResponseWriter, token string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	issued, ok := time.Time{}, false
	for known, at := range s.logins { // each is compared in constant time
		if subtle.ConstantTimeCompare([]byte(known), []byte(token)) == 1 {
			issued, ok = at, true
		}
	}
	if !ok {
		return false
	}
	delete(s.logins, token)
	if now.Sub(issued) > loginTime {
		return false
	}
	dropOldest(s.open, maxSessions, func(one *session) time.Time { return one.seen })
	id := rand.Text()
	s.open[id] = &session{csrf: rand.Text(), seen: now}
	http.SetCookie(w, &http.Cookie{Name: s.cookie, Value: id, Path: "/", HttpOnly: true,
		SameSite: http.SameSiteStrictMode})
	return true
}

// find returns the session of the browser that sent the request, and extends the session. It returns nil if the browser
// is not signed in.
func (s *sessions) find(r *http.Request) *session {
	one := s.look(r)
	if one != nil {
		s.mu.Lock()
		one.seen = s.now()
		s.mu.Unlock()
	}
	return one
}

// look returns the session of a request, as find does, but does not extend the session.
func (s *sessions) look(r *http.Request) *session {
	c, err := r.Cookie(s.cookie)
	if err != nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.open[c.Value]
	if one == nil {
		return nil
	}
	if s.now().Sub(one.seen) > sessionTime {
		delete(s.open, c.Value)
		return nil
	}
	return one
}

// leave ends the session of a request.
func (s *sessions) leave(w http.ResponseWriter, r *http.Request) {
	if c, err := r.Cookie(s.cookie); err == nil {
		s.mu.Lock()
		delete(s.open, c.Value)
		s.mu.Unlock()
	}
	http.SetCookie(w, &http.Cookie{Name: s.cookie, Path: "/", MaxAge: -1, HttpOnly: true,
		SameSite: http.SameSiteStrictMode})
}

// allows reports whether a form has the token of the session.
func (s *session) allows(token string) bool {
	return subtle.ConstantTimeCompare([]byte(s.csrf), []byte(token)) == 1
}

// dropOldest removes the oldest elements of m until m has fewer than limit elements. The function at returns the time
// of an element.
func dropOldest[T any](m map[string]T, limit int, at func(T) time.Time) {
	for len(m) >= limit {
		oldest := ""
		for key, one := range m {
			if oldest == "" || at(one).Before(at(m[oldest])) {
				oldest = key
			}
		}
		delete(m, oldest)
	}
}
