package component

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/quorate/quorate/internal/fault"
)

// Pos is a place in a file. The zero value is no place.
type Pos struct {
	File string
	Line int // counted from 1; 0 = the file as a whole
}

// String returns "file:line", or only the file if the line is 0.
func (p Pos) String() string {
	if p.Line == 0 {
		return p.File
	}
	return p.File + ":" + strconv.Itoa(p.Line)
}

// Problem is an error or warning at a place in a file.
type Problem struct {
	Pos  Pos
	Text string // never contains a value from a reference
	Hint string // how to fix it; may be empty
}

// String returns the problem as one line.
func (p Problem) String() string {
	text := p.Text
	if where := p.Pos.String(); where != "" {
		text = where + ": " + text
	}
	if p.Hint != "" {
		text += " (" + p.Hint + ")"
	}
	return text
}

// Problems is a list of problems in the order in which they were found.
type Problems []Problem

// maxListed bounds how many problems one error lists.
const maxListed = 20

// Err returns nil if there are no problems. Otherwise it returns one fault.Invalid error that lists at most
// maxListed problems, one per line. The Key of the error is the file of the first problem.
func (ps Problems) Err(op string) error {
	switch len(ps) {
	case 0:
		return nil
	case 1:
		return &fault.Error{Code: fault.Invalid, Op: op, Msg: ps[0].String(), Key: ps[0].Pos.File}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d problems:", len(ps))
	for i, p := range ps {
		if i == maxListed {
			fmt.Fprintf(&b, "\n\tand %d more", len(ps)-maxListed)
			break
		}
		b.WriteString("\n\t")
		b.WriteString(p.String())
	}
	return &fault.Error{Code: fault.Invalid, Op: op, Msg: b.String(), Key: ps[0].Pos.File}
}

// order sorts the problems of one document by line. If the document has a valid name, order also puts the kind and the
// name of the document in front of the text of each problem.
func (ps Problems) order(doc Document) {
	slices.SortStableFunc(ps, func(a, b Problem) int { return a.Pos.Line - b.Pos.Line })
	if nameProblem(doc.Name) != "" {
		return
	}
	what := string(doc.Kind)
	if doc.Kind == KindComponent {
		what = "component"
	}
	for i := range ps {
		ps[i].Text = what + " " + doc.Name + ": " + ps[i].Text
	}
}

func (ps *Problems) add(pos Pos, hint, format string, args ...any) {
	*ps = append(*ps, Problem{Pos: pos, Text: fmt.Sprintf(format, args...), Hint: hint})
}
