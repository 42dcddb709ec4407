// Package history records what concurrent clients request and which answers they get, and checks whether a system that
// never fails could have given these answers:
//
//   - Keys and Locks search for an order of the calls that explains the answers, with the linearizability checker
//     Porcupine.
//   - Actors and Due check rules about the times of turns of actors, and of ticks of reminders and jobs.
//   - Topics compares the final messages of topics with what was published and delivered.
//   - Workflows compares the results of workflows with the results of their activities.
//
// The package is for tests and for the campaign of faults. It owns the models of keys, locks, actors, due work, topics
// and workflows. It imports no package of the product, so that it does not depend on how a client reaches the system.
// It has no goroutines of its own.
package history

import (
	"io"
	"strings"
	"sync/atomic"
	"time"
)

// never is the end time of a call without an answer. Such a call may take effect at any time after its start.
const never = int64(1) << 62

// WallClock returns a clock that counts the nanoseconds since the call of WallClock.
func WallClock() func() int64 {
	begun := time.Now()
	return func() int64 { return int64(time.Since(begun)) }
}

// CallClock returns a clock that counts its calls. So all its times differ, even in tests whose virtual time stands
// still.
func CallClock() func() int64 {
	var calls atomic.Int64
	return func() int64 { return calls.Add(1) }
}

func micro(d time.Duration) string { return d.Round(time.Microsecond).String() }

func writeLines(w io.Writer, lines []string) (int64, error) {
	n, err := io.WriteString(w, strings.Join(lines, "\n")+"\n")
	return int64(n), err
}
