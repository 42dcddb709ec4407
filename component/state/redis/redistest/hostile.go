package redistest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quorate/quorate/component/state/statetest"
)

// Hostile is a server that answers some commands with bytes from the test. It answers a few other commands as Redis
// does, and refuses the rest. Its methods are safe for concurrent use.
type Hostile struct {
	Address string

	answers map[string]string
	endless bool

	mu     sync.Mutex
	called map[string]int
	last   map[string][]string
}

// StartHostile starts a server that ends with the test. answers maps names of commands, in lower case, to the bytes
// that the server returns. If endless is true, the server repeats these bytes until the client closes the connection.
func StartHostile(t testing.TB, answers map[string]string, endless bool) *Hostile {
	t.Helper()
	h := &Hostile{answers: answers, endless: endless, called: map[string]int{}, last: map[string][]string{}}
	h.Address = statetest.Hostile(t, h.serve)
	return h
}

func (h *Hostile) serve(conn net.Conn) {
	r := bufio.NewReader(conn)
	for {
		words, err := ReadCommand(r)
		if err != nil {
			return
		}
		name := strings.ToLower(words[0])
		h.mu.Lock()
		h.called[name]++
		h.last[name] = words
		h.mu.Unlock()
		answer, evil := h.answers[name]
		switch {
		case evil:
			for _, err = io.WriteString(conn, answer); err == nil && h.endless; {
				_, err = io.WriteString(conn, answer)
			}
			continue
		case name == "ping":
			answer = "+PONG\r\n"
		case name == "info":
			text := "role:master\r\nconnected_slaves:0\r\n"
			answer = fmt.Sprintf("$%d\r\n%s\r\n", len(text), text)
		case name == "pttl":
			answer = ":-1\r\n"
		case name == "xpending":
			answer = "*0\r\n"
		case name == "xreadgroup":
			<-time.After(5 * time.Millisecond) // as if it had waited for messages
			answer = "*-1\r\n"
		default:
			answer = "-ERR unknown command\r\n"
		}
		_, _ = io.WriteString(conn, answer)
	}
}

// Called returns how many commands with one of the names the server has received. The names must be in lower case.
func (h *Hostile) Called(names ...string) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range names {
		n += h.called[name]
	}
	return n
}

// Last returns the words of the latest command with the given name, or nil if there is none. The name must be in lower
// case.
func (h *Hostile) Last(name string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.last[name]
}
