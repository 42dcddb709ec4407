package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/cmd/internal/settings"
)

// withSettings adds a flag to c for every setting, and sets a help text that lists the settings by group.
func withSettings(c *cobra.Command, set *settings.Set) {
	set.Bind(c.Flags())
	completeWords(c, set)
	c.SetUsageFunc(func(c *cobra.Command) error {
		fmt.Fprintf(c.OutOrStdout(), "Usage:\n  %s\n\n%s", c.UseLine(), settingsHelp(c, set))
		return nil
	})
}

// completeWords lets the shell complete flags that accept one of a few words.
func completeWords(c *cobra.Command, set *settings.Set) {
	for _, st := range set.All() {
		if words := st.Words(); words != nil && c.Flags().Lookup(st.Name) != nil {
			_ = c.RegisterFlagCompletionFunc(st.Name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
		}
	}
}

// settingsHelp returns the help text for the flags of a command: the settings by group, then the other flags of the
// command.
func settingsHelp(c *cobra.Command, set *settings.Set) string {
	var b strings.Builder
	for _, g := range settings.Groups() {
		rows := [][]string{}
		for _, st := range set.All() {
			if st.Group == g && st.Flag() != "" {
				rows = append(rows, []string{"  " + st.Flag() + placeholder(st), describe(st)})
			}
		}
		fmt.Fprintf(&b, "%s:\n", g)
		_ = command.Table(&b, rows) // writing to a Builder never fails
		b.WriteString("\n")
	}
	known := map[string]bool{}
	for _, st := range set.All() {
		known[st.Name] = true
		for _, alias := range st.Aliases {
			known[alias] = true
		}
	}
	rows := [][]string{}
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if known[f.Name] || f.Hidden {
			return
		}
		value, text := pflag.UnquoteUsage(f)
		flag := "  --" + f.Name
		if f.Shorthand != "" {
			flag = "  -" + f.Shorthand + ", --" + f.Name
		}
		rows = append(rows, []string{strings.TrimRight(flag+" "+value, " "), text})
	})
	b.WriteString("Other flags:\n")
	_ = command.Table(&b, rows)
	b.WriteString("\nEvery flag has an environment variable, --http-port for example QUORATE_HTTP_PORT, and a\n" +
		"key in the file of --config-file, httpPort. The flag wins, then the environment, then the file.\n")
	return b.String()
}

// placeholder returns the name of a flag's value in the help. A switch has none.
func placeholder(st *settings.Setting) string {
	if st.Kind() == settings.KindSwitch {
		return ""
	}
	return " " + st.Kind()
}

// describe returns the help for a setting in one line.
func describe(st *settings.Setting) string {
	text := st.Usage
	if words := st.Words(); words != nil && !strings.Contains(text, words[0]) {
		text += ": " + strings.Join(words, ", ")
	}
	if st.Default != "" && st.Default != "false" && st.Default != "0" {
		text += " (default " + st.Default + ")"
	}
	if len(st.Aliases) > 0 {
		text += " [also --" + strings.Join(st.Aliases, ", --") + "]"
	}
	return text
}
