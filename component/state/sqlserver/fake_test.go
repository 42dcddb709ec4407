package sqlserver_test

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/quorate/quorate/component/state/statetest"
)

// server is a fake of SQL Server. It speaks TDS, and stores the rows of one table. It parses the SQL that the store
// sends, and refuses all other SQL. Tests with it verify the requests of the store and how the store handles answers.
// They do not verify the behaviour of SQL Server. Only one transaction runs at a time.
type server struct {
	statetest.Listener
	*table
	t        testing.TB
	password string // password that logins need; empty = any password is accepted
	tls      *tls.Config
	encrypts byte // with tls: the encryption in the answer to the prelogin; 4 = TLS is before the prelogin

	mu       sync.Mutex
	faults   []injected
	requests []request
	logins   []login

	turn sync.Mutex // held by the connection with the running transaction
}

// injected is the reaction to requests whose text contains part.
type injected struct {
	part string
	what reaction
}

// reaction is an answer to a request instead of the usual one.
type reaction struct {
	number int32  // number of an error
	class  byte   // of the error; 0 = 16
	late   bool   // the request is carried out first
	cut    bool   // the connection ends
	stall  bool   // the server answers only attention signals
	dead   bool   // the server answers nothing
	raw    []byte // the tokens of the answer
	pieces []byte // packets of the answer
	once   bool   // only the first matching request is affected
}

// start starts a server that ends with the test.
func start(t testing.TB) *server {
	t.Helper()
	s := &server{t: t, table: newTable()}
	s.run()
	t.Cleanup(s.kill)
	return s
}

// run accepts connections.
func (s *server) run() {
	s.t.Helper()
	s.Start(s.t, func(c net.Conn) { (&session{server: s, conn: c, in: bufio.NewReader(c)}).serve() })
}

// kill ends the server with all its connections. The stored rows stay.
func (s *server) kill() {
	s.Close()
	s.Wait()
}

// fail sets the reaction to requests whose text contains part. Requests to begin or commit a transaction have the
// texts "TM begin" and "TM commit".
func (s *server) fail(part string, what reaction) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = []injected{{part, what}}
}

// heal removes the reaction that fail has set.
func (s *server) heal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
}

// note records a request. It returns the reaction that fail has set for the request, if there is one.
func (s *server) note(r request) (reaction, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, r)
	for _, f := range s.faults {
		if strings.Contains(r.text, f.part) {
			if f.what.once {
				s.faults = nil
			}
			return f.what, true
		}
	}
	return reaction{}, false
}

// sent returns the number of requests whose text contains part.
func (s *server) sent(part string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, r := range s.requests {
		if strings.Contains(r.text, part) {
			n++
		}
	}
	return n
}

// session is one connection to the fake server.
type session struct {
	*server
	conn   net.Conn
	in     *bufio.Reader
	asked  byte   // what the prelogin requests to encrypt
	inTx   uint64 // 0 = none
	before *rows  // the rows when the transaction began
}

var errCut = errors.New("the fake ends the connection")

func (s *session) serve() {
	defer s.conn.Close()
	defer func() { _ = s.end(false) }()
	if s.tls != nil && s.encrypts == 4 {
		s.secure(s.conn)
	}
	for {
		kind, body, err := message(s.in)
		if err != nil {
			return
		}
		var out tokens
		switch kind {
		case packetPrelogin:
			encrypts := byte(2)
			if s.tls != nil {
				encrypts = s.encrypts
			}
			s.asked = encryption(body)
			out.prelogin(encrypts)
			if err = answer(s.conn, out.Bytes()); err == nil && s.tls != nil && encrypts != 4 {
				err = s.wrap(encrypts == 0)
			}
			if err != nil {
				return
			}
			continue
		case packetLogin:
			if err = s.login(&out, parseLogin(body)); err != nil {
				_ = answer(s.conn, out.Bytes())
				return
			}
		case packetAttention:
			const confirmed = 0x20
			out.done(tokenDone, confirmed, 0)
		case packetTx:
			p := parser{body}
			p.headers()
			name := map[uint16]string{5: "TM begin", 7: "TM commit", 8: "TM rollback"}[p.uint16()]
			err = s.handle(&out, request{text: name})
		case packetBatch:
			err = s.handle(&out, parseBatch(body))
		case packetRPC:
			var r request
			if r, err = parseRPC(body); err == nil {
				err = s.handle(&out, r)
			}
		default:
			err = fmt.Errorf("the fake does not know the packet %#x", kind)
		}
		if err != nil {
			if !errors.Is(err, errCut) {
				s.t.Error(err)
			}
			return
		}
		if err := answer(s.conn, out.Bytes()); err != nil {
			return
		}
	}
}

func (s *session) login(out *tokens, l login) error {
	s.mu.Lock()
	l.asked = s.asked
	s.logins = append(s.logins, l)
	password := s.password
	s.mu.Unlock()
	what, fails := s.note(request{text: "LOGIN " + l.database})
	switch {
	case fails && what.raw != nil:
		out.put(what.raw)
		return nil
	case fails && what.number != 0:
		out.refuse(what.number, 14, "the fake refuses")
	case password != "" && l.password != password:
		out.refuse(18456, 14, "Login failed for user '"+l.user+"'.")
	case l.database != "" && !s.exists(l.database):
		out.refuse(4060, 11, "Cannot open database \""+l.database+"\" requested by the login.")
	default:
		out.welcome(l.database)
		return nil
	}
	out.done(tokenDone, 2, 0)
	return errCut
}

// handle executes a request, or carries out the reaction that fail has set for it.
func (s *session) handle(out *tokens, r request) error {
	what, fails := s.note(r)
	if fails && what.late {
		var unseen tokens
		if err := s.carryOut(&unseen, r); err != nil {
			return err
		}
	}
	switch {
	case !fails:
		return s.carryOut(out, r)
	case what.raw != nil:
		out.put(what.raw)
		return nil
	case what.pieces != nil:
		_, _ = s.conn.Write(what.pieces) // the client may end the connection before it has read all
		_, _ = io.Copy(io.Discard, s.in)
		return errCut
	case what.dead:
		_, _ = io.Copy(io.Discard, s.in)
		return errCut
	case what.stall:
		for kind := byte(0); kind != packetAttention; {
			var err error
			if kind, _, err = message(s.in); err != nil {
				return errCut
			}
		}
		if s.inTx != 0 { // XACT_ABORT rolls the transaction back
			out.transaction(10, s.inTx)
			_ = s.end(false)
		}
		out.done(tokenDone, 0x20, 0)
		return nil
	case what.cut:
		return errCut
	}
	class := what.class
	if class == 0 {
		class = 16
	}
	s.refuse(out, r, refusal{what.number, class, "the fake refuses"})
	if class >= 20 {
		_ = answer(s.conn, out.Bytes())
		return errCut
	}
	return nil
}

// refuse answers with an error, which ends the transaction because the store sets XACT_ABORT.
func (s *session) refuse(out *tokens, r request, e refusal) {
	out.refuse(e.number, e.class, e.msg)
	if s.inTx != 0 && !strings.HasPrefix(r.text, "TM ") {
		out.transaction(10, s.inTx)
		_ = s.end(false)
	}
	out.done(tokenDone, 2, 0)
}

func (s *session) carryOut(out *tokens, r request) error {
	switch r.text {
	case "TM begin":
		s.turn.Lock()
		s.before = s.save()
		s.inTx = s.next()
		out.transaction(8, s.inTx)
		out.done(tokenDone, 0, 0)
		return nil
	case "TM commit", "TM rollback":
		event := map[string]byte{"TM commit": 9, "TM rollback": 10}[r.text]
		out.transaction(event, s.inTx)
		out.done(tokenDone, 0, 0)
		return s.end(r.text == "TM commit")
	}
	if s.inTx == 0 {
		s.turn.Lock()
		defer s.turn.Unlock()
	}
	before := s.save()
	results, changed, err := s.execute(r)
	var e refusal
	if errors.As(err, &e) {
		s.restore(before)
		s.refuse(out, r, e)
		return nil
	}
	if err != nil {
		return err
	}
	between, last := byte(tokenDone), byte(tokenDone)
	if r.rpc {
		between, last = tokenDoneIn, tokenDoneRPC
	}
	for _, one := range results {
		out.result(one)
		out.done(between, 0x11, len(one.rows))
	}
	if r.rpc {
		out.put(byte(tokenStatus), int32(0))
	}
	status := uint16(0)
	if !strings.Contains(r.text, "SET NOCOUNT ON") {
		status = 0x10
	}
	out.done(last, status, changed)
	return nil
}

// end ends the transaction of the connection, if it has one.
func (s *session) end(committed bool) error {
	if s.inTx == 0 {
		return nil
	}
	if !committed {
		s.restore(s.before)
	}
	s.inTx = 0
	s.turn.Unlock()
	return nil
}
