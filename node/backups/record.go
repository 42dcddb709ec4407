package backups

import (
	"encoding/json"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// record is the progress of the schedule. It is stored as a note. A note is a small named record in the replicated
// data.
type record struct {
	Period int64    `json:"period,omitempty"` // Unix time at which the period of the last backup began
	Claim  *claim   `json:"claim,omitempty"`  // the node that writes a backup now
	Last   *saved   `json:"last,omitempty"`   // the last complete backup
	Failed *failure `json:"failed,omitempty"` // the attempt after Last that failed
	Stored []string `json:"stored,omitempty"` // names that the command has stored, oldest first
}

// claim identifies the node that is writing a backup. The node renews its claim by changing the field Renewed.
type claim struct {
	Node    string `json:"node"`
	ID      string `json:"id"` // of this run
	Renewed int    `json:"renewed"`
}

// saved describes a complete backup.
type saved struct {
	Name     string    `json:"name"`
	Node     string    `json:"node"` // the node that wrote the backup
	Time     time.Time `json:"time"`
	Bytes    int64     `json:"bytes"`
	Keys     uint64    `json:"keys"`
	Verified bool      `json:"verified"`
}

// failure describes an attempt that failed.
type failure struct {
	Node  string    `json:"node"`
	Time  time.Time `json:"time"`
	Error string    `json:"error"`
}

// decode decodes a record. An empty text is an empty record.
func decode(text []byte) (r record, err error) {
	if len(text) == 0 {
		return r, nil
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, &fault.Error{Code: fault.Corrupt, Op: "backups.decode",
			Msg: "the record of the backups is unreadable", Err: err,
			Hint: "run the same version of quorate on all servers"}
	}
	return r, nil
}

// encode encodes a record.
func (r record) encode() []byte {
	text, _ := json.Marshal(r) // every record can be encoded
	return text
}

// due reports whether a backup is due at the time now. There is one backup in each period of the given length. A backup
// is due in two cases:
//
//   - The last backup belongs to an earlier period than now.
//   - The last backup is more than one period in the future, because a clock was wrong.
//
// After a failed attempt, due returns false until retryAfter has passed, or one period if that is shorter.
func (r record) due(now time.Time, period time.Duration) bool {
	if r.Failed != nil {
		if ago := now.Sub(r.Failed.Time); ago >= 0 && ago < min(period, retryAfter) {
			return false
		}
	}
	last := time.Unix(r.Period, 0)
	return periodOf(now, period).After(last) || last.Sub(now) > period
}

// periodOf returns the start of the period that contains the time now. The parameter every is the length of a period.
// All nodes use the same periods.
func periodOf(now time.Time, every time.Duration) time.Time { return now.UTC().Truncate(every) }
