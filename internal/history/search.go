package history

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// NotLinearizable is the error for the calls on a family of keys, or on a lock. Either no order of these calls explains
// the answers, or the search for an order took too long.
type NotLinearizable struct {
	Undecided bool     // the search has exceeded its time limit, so there may be an order
	Family    string   // name of the family of keys, or of the lock
	History   []string // one line per call, ordered by start
	Picture   string   // path of a visualization, or why there is none
}

// Error returns the violation in one line.
func (n *NotLinearizable) Error() string {
	result := "no order explains the answers"
	if n.Undecided {
		result = "the search took too long"
	}
	return fmt.Sprintf("the history of %d operations of %s is not linearizable (%s): %s", len(n.History), n.Family,
		result, n.Picture)
}

// search looks for an order of the calls that the model permits and that agrees with their times. If there is none, it
// returns a *NotLinearizable and writes a visualization to a file in dir. It also returns a *NotLinearizable if the
// search exceeds the time limit, which is at least one second.
func search(model porcupine.Model, family string, calls []porcupine.Operation, limit time.Duration, dir string) error {
	limit = max(limit, time.Second)
	switch porcupine.CheckOperationsTimeout(model, calls, limit) {
	case porcupine.Ok:
		return nil
	case porcupine.Illegal:
		// The second search collects what the visualization shows.
		_, info := porcupine.CheckOperationsVerbose(model, calls, limit)
		return &NotLinearizable{Family: family, History: describe(calls), Picture: picture(model, info, dir)}
	}
	return &NotLinearizable{Undecided: true, Family: family, History: describe(calls), Picture: "no picture was made"}
}

func picture(model porcupine.Model, info porcupine.LinearizationInfo, dir string) string {
	f, err := os.CreateTemp(dir, "history-*.html")
	if err != nil {
		return "no picture could be made: " + err.Error()
	}
	defer f.Close()
	if err := porcupine.Visualize(model, info, f); err != nil {
		return "no picture could be made: " + err.Error()
	}
	return "see " + f.Name()
}

// describe returns one line per call, ordered by start.
func describe(calls []porcupine.Operation) []string {
	sorted := slices.SortedFunc(slices.Values(calls),
		func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	out := make([]string, len(sorted))
	for i, o := range sorted {
		end := "never answered"
		if o.Return != never {
			end = micro(time.Duration(o.Return))
		}
		out[i] = fmt.Sprintf("%s to %s, client %d: %s", micro(time.Duration(o.Call)), end, o.ClientId,
			brief(fmt.Sprintf("%+v -> %+v", o.Input, o.Output)))
	}
	return out
}

// brief shortens a text of more than 240 bytes.
func brief(text string) string {
	const most = 240
	if len(text) <= most {
		return text
	}
	return fmt.Sprintf("%s... (%d bytes)", text[:most], len(text))
}
