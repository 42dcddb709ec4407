package sqlserver_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"encoding/pem"
	"io"
	"log/slog"
	"net"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/sqlserver"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

// encryption returns what a prelogin requests to encrypt.
func encryption(body []byte) byte {
	for i := 0; body[i] != 0xff; i += 5 {
		if body[i] == 1 {
			return body[binary.BigEndian.Uint16(body[i+1:])]
		}
	}
	return 0xff
}

// secure begins TLS on a connection.
func (s *session) secure(raw net.Conn) *tls.Conn {
	secured := tls.Server(raw, s.tls)
	s.conn, s.in = secured, bufio.NewReader(secured)
	return secured
}

// wrap makes a TLS handshake in packets. If only the login is encrypted, the connection is plain again after the
// login.
func (s *session) wrap(onlyLogin bool) error {
	raw := s.conn
	w := &wrapping{Conn: raw}
	if err := s.secure(w).Handshake(); err != nil {
		return err
	}
	w.ended = true
	if err := w.flush(); err != nil || !onlyLogin {
		return err
	}
	s.in = bufio.NewReader(&oneMessage{secured: s.conn, raw: raw})
	s.conn = raw
	return nil
}

// oneMessage reads one packet from a TLS connection, and then reads from the raw connection.
type oneMessage struct{ secured, raw io.Reader }

func (o *oneMessage) Read(p []byte) (int, error) {
	if o.secured == nil {
		return o.raw.Read(p)
	}
	n, err := o.secured.Read(p) // the client sends a packet in one record
	o.secured = nil
	return n, err
}

// wrapping is a connection that packs the handshake into packets until ended is set.
type wrapping struct {
	net.Conn
	out   []byte
	in    []byte
	ended bool
}

func (w *wrapping) Write(p []byte) (int, error) {
	if w.ended {
		return w.Conn.Write(p)
	}
	w.out = append(w.out, p...)
	return len(p), nil
}

func (w *wrapping) flush() error {
	if len(w.out) == 0 {
		return nil
	}
	out := w.out
	w.out = nil
	return answer(w.Conn, out)
}

func (w *wrapping) Read(p []byte) (int, error) {
	if w.ended {
		return w.Conn.Read(p)
	}
	if len(w.in) == 0 {
		if err := w.flush(); err != nil {
			return 0, err
		}
		kind, body, err := message(w.Conn)
		if err != nil || kind != packetPrelogin {
			return 0, io.ErrUnexpectedEOF
		}
		w.in = body
	}
	n := copy(p, w.in)
	w.in = w.in[n:]
	return n, nil
}

// encrypting makes a server use TLS. It returns the file of the certificate's authority.
func encrypting(t *testing.T, s *server, encrypts byte) string {
	t.Helper()
	web := httptest.NewTLSServer(nil)
	web.Close()
	s.tls = &tls.Config{Certificates: web.TLS.Certificates, MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12}
	if s.encrypts = encrypts; encrypts == 4 {
		s.tls.MaxVersion, s.tls.NextProtos = 0, []string{"tds/8.0"}
	}
	file := filepath.Join(t.TempDir(), "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: web.Certificate().Raw})
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestOpen_Encryption(t *testing.T) {
	const login, all, none, forced, strict = 0, 1, 2, 3, 4
	const version74, version80 = 0x74000004, 0x08000000
	for name, c := range map[string]struct {
		settings string
		asks     byte
		encrypts byte // encryption that the server requires
		version  uint32
		refused  string
	}{
		"nobody":            {"&encrypt=disable", none, none, version74, ""},
		"by default":        {"", login, none, version74, ""},
		"login":             {"&encrypt=false&trustservercertificate=true", login, login, version74, ""},
		"login by default":  {"", login, login, version74, ""},
		"all":               {"&encrypt=true&certificate=FILE", all, all, version74, ""},
		"server demands it": {"&encrypt=false&certificate=FILE", login, forced, version74, ""},
		"strict":            {"&encrypt=strict&certificate=FILE", strict, strict, version80, ""},
		"server cannot":     {"&encrypt=true", all, none, 0, "correct encrypt"},
		"server only login": {"&encrypt=true", all, login, 0, "correct encrypt"},
		"unknown authority": {"&encrypt=true", all, all, 0, "is not trusted"},
		"strict, unknown":   {"&encrypt=strict", strict, strict, 0, "is not trusted"},
		"other name":        {"&encrypt=true&certificate=FILE&hostNameInCertificate=x", all, all, 0, "is not trusted"},
		"unknown, unasked":  {"&encrypt=disable", none, forced, 0, "is not trusted"},
		"other name, strict": {"&encrypt=strict&certificate=FILE&hostNameInCertificate=x", strict, strict, 0,
			"is not trusted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			file := ""
			if c.encrypts != none {
				file = encrypting(t, s, c.encrypts)
			}
			settings := "sqlserver://shop:secret@" + s.Address() + "?database=orders" +
				strings.ReplaceAll(c.settings, "FILE", url.QueryEscape(file))
			if c.refused != "" {
				err := once(t, sqlserver.Options{}, "connectionString", settings)
				statetest.WantFault(t, err, fault.Unavailable, c.refused)
				return
			}
			store, err := open(t.Context(), t, sqlserver.Options{}, "connectionString", settings)
			testutil.Must(t, err)
			defer store.Close()
			value := make([]byte, 100_000) // a value that needs several packets
			for i := range value {
				value[i] = 'a' + byte(i%20)
			}
			_, err = store.Set(t.Context(), state.SetRequest{Items: []state.Write{{Key: "k", Value: value}}})
			testutil.Must(t, err)
			item, err := store.Get(t.Context(), state.GetRequest{Key: "k"})
			if err != nil || string(item.Value) != string(value) {
				t.Errorf("Get = %d bytes, %v", len(item.Value), err)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if l := s.logins[0]; l.password != "secret" || l.version != c.version || l.asked != c.asks {
				t.Errorf("login %+v", l)
			}
		})
	}
}

func TestOpen_SignInThatDependsOnTheCertificateIsNotChecked(t *testing.T) {
	var log bytes.Buffer
	_ = once(t, sqlserver.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, "connectionString",
		"server=127.0.0.1;port="+statetest.FreePort(t)+`;user id=D\u;password=p;epa enabled=true`)
	if !strings.Contains(log.String(), "its messages are not checked") {
		t.Errorf("log: %s", &log)
	}
}
