package postgresql_test

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/component/state/postgresql"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/fault"
)

// packet returns a message of PostgreSQL that announces the length size, followed by body.
func packet(kind byte, size uint32, body string) string {
	return string(binary.BigEndian.AppendUint32([]byte{kind}, size+4)) + body
}

func complete(kind byte, body string) string { return packet(kind, uint32(len(body)), body) }

// A hostile server cannot make the client allocate much memory, or end the process. In some cases, the first answer
// is correct, so that the sign-in succeeds. The server answers only the first connections and closes all others.
// Otherwise the allocated memory would depend on the speed of the machine.
func TestOpen_HostileServer(t *testing.T) {
	const attacked = 4
	welcome := complete('R', "\x00\x00\x00\x00") + complete('Z', "I")
	for name, c := range map[string]struct {
		first, then string
		endless     bool
	}{
		"huge row":         {welcome, packet('D', 1<<30, ""), false},
		"largest row":      {welcome, packet('D', 128<<20, ""), false}, // the bytes of the row never arrive
		"huge description": {welcome, packet('T', 1<<30, ""), false},
		"negative length":  {welcome, packet('D', 1<<31, ""), false},
		"huge sign-in":     {packet('R', 1<<30, ""), "", false},
		"many parameters":  {complete('S', strings.Repeat("a", 60_000)+"\x00b\x00"), "", true},
		"notifications": {welcome, complete('A', "\x00\x00\x00\x01a\x00"+strings.Repeat("b", 60_000)+"\x00"),
			true},
		"notices":              {welcome, complete('N', "Mx\x00\x00"), true},
		"error without a code": {welcome, complete('E', "SERROR\x00MX\x00\x00") + complete('Z', "I"), false},
		"error of one letter":  {complete('E', "SFATAL\x00C5\x00MX\x00\x00"), "", false},
	} {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int64
			send := func(conn net.Conn, text string) bool {
				asked.Add(1)
				for {
					if _, err := io.WriteString(conn, text); err != nil || !c.endless {
						return err == nil
					}
				}
			}
			address := statetest.Hostile(t, func(conn net.Conn) {
				if asked.Load() >= attacked {
					return
				}
				if _, err := conn.Read(make([]byte, 4096)); err != nil || c.then == "" && !send(conn, c.first) {
					return
				}
				if c.then != "" {
					_, _ = io.WriteString(conn, c.first)
				}
				if _, err := conn.Read(make([]byte, 4096)); err == nil && c.then != "" {
					send(conn, c.then)
				}
			})
			host, port, _ := net.SplitHostPort(address)
			statetest.Bounded(t, 24<<20, func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				s, err := open(ctx, t, postgresql.Options{Version: postgresql.V2}, "connectionString",
					"host="+host+" port="+port+" user=u password=p dbname=d sslmode=disable pool_max_conns=2")
				if err == nil {
					_ = s.Close()
				}
				if err == nil || fault.CodeOf(err) == "" {
					t.Errorf("Open: %v", err)
				}
			})
			if asked.Load() == 0 {
				t.Error("the server was not called")
			}
		})
	}
}
