package command

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/quorate/quorate/internal/fault"
)

// Confirm asks the user to type a word. Any other input means no. A command that calls it has a flag --yes, which makes
// the question unnecessary.
func (s *Shell) Confirm(word, what string) error {
	fmt.Fprintf(s.Stderr, "Type %s (%s) to continue: ", what, word)
	line, err := bufio.NewReader(s.Stdin).ReadString('\n')
	if strings.TrimSpace(line) == word {
		return nil
	}
	fmt.Fprintln(s.Stderr)
	if errors.Is(err, io.EOF) && line == "" {
		return Usagef("there is no input to confirm with (add --yes to continue without a confirmation)")
	}
	return &fault.Error{Code: fault.Denied, Op: "cli.confirm", Msg: "not confirmed; nothing was changed"}
}
