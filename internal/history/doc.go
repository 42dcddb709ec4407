// Package history records what concurrent clients request and which answers they get, and checks whether a system that
// never fails could have answered so. Keys and Locks search an order of the calls with Porcupine, a linearizability
// checker. Actors and Due check rules, because the times of turns and ticks decide there.
//
// It is for tests and for the campaign of faults. It owns the models of keys, locks, actors and due work. It must never
// know how a client reaches the system, so it imports no package of the product. It has no goroutines of its own.
package history

import (
	"io"
	"strings"
	"sync/atomic"
	"time"
)

// never is the end of a call that was not answered. The call may take effect at any time after its start.
const never = int64(1) << 62

// WallClock returns a clock that counts the nanoseconds since the call of WallClock.
func WallClock() func() int64 {
	begun := time.Now()
	return func() int64 { return int64(time.Since(begun)) }
}

// CallClock returns a clock that counts its calls. No two moments are equal, also where virtual time stands still.
func CallClock() func() int64 {
	var calls atomic.Int64
	return func() int64 { return calls.Add(1) }
}

func micro(d time.Duration) string { return d.Round(time.Microsecond).String() }

func writeLines(w io.Writer, lines []string) (int64, error) {
	n, err := io.WriteString(w, strings.Join(lines, "\n")+"\n")
	return int64(n), err
}
