package statecmd

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/cmd/internal/statecopy"
)

// printCopy prints the report for people.
func (m *commands) printCopy(r *statecopy.Report) error {
	verb, n := "Copied", r.Copied
	switch {
	case r.Verified:
		verb, n = "Compared", r.Seen
	case r.DryRun:
		verb = "Would copy"
	}
	fmt.Fprintf(m.Stdout, "%s %s (%s; %d expire, %d are bytes) of application %s, from %s to %s.\n", verb,
		command.Count(int(n), "key"), command.BytesText(r.Bytes), r.Expiring, r.Binary, r.App, r.From, r.To)
	if !r.Completed {
		fmt.Fprintln(m.Stdout, "The copy is incomplete. Run the command again to continue.")
	}
	if err := counts(m, [][]string{{"OF THEM", "KEYS"}}, []counted{{"actor state", r.Actors},
		{"the same in both", r.Same}, {"missing in " + r.To, r.Missing}, {"another value in " + r.To, r.Differ},
		{"refused by " + r.To, r.Refused}, {"cannot be read", r.Unreadable}, {"only in " + r.To, r.Extra},
		{"deleted in " + r.To, r.Deleted}, {"deleted or expired meanwhile", r.Vanished}}); err != nil {
		return err
	}
	for _, p := range r.Examples {
		fmt.Fprintf(m.Stdout, "%s (%s)\n", command.Printable(p.Key), p.Reason)
	}
	var others []counted
	for _, prefix := range slices.Sorted(maps.Keys(r.Others)) {
		others = append(others, counted{cmp.Or(command.Printable(prefix), "(none, and others)"), r.Others[prefix]})
	}
	return counts(m, [][]string{{"OTHER PREFIX, NOT COPIED", "KEYS"}}, others)
}

// counted is one line of a table of key counts.
type counted struct {
	name string
	keys int64
}

// counts prints a table of the lines that have at least one key. If there are no such lines, it prints nothing. The
// parameter rows has only the heading of the table.
func counts(m *commands, rows [][]string, lines []counted) error {
	for _, l := range lines {
		if l.keys > 0 {
			rows = append(rows, []string{l.name, strconv.FormatInt(l.keys, 10)})
		}
	}
	if len(rows) == 1 {
		return nil
	}
	return command.Table(m.Stdout, rows)
}
