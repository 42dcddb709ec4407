package cli

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/cmd/internal/backupcmd"
	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/cmd/internal/settings"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/node"
)

func (m *Main) configCommand() *cobra.Command {
	c := &cobra.Command{Use: "config", Short: "Show and check the settings of a node", Args: cobra.ArbitraryArgs,
		RunE: command.Group}
	c.AddCommand(m.configPrintCommand(), m.configValidateCommand())
	return c
}

func (m *Main) configPrintCommand() *cobra.Command {
	set, out := settings.New(), command.Output{}
	c := &cobra.Command{
		Use:   "print [flags]",
		Short: "Print every setting with its value and source",
		Long:  "Print the settings that run would use with the same flags, environment and file.",
		Args:  cobra.NoArgs,
	}
	c.RunE = func(c *cobra.Command, _ []string) error {
		config, err := m.Resolve(set, c.Flags(), nil)
		if err != nil {
			return err
		}
		return m.printSettings(set, config, out.JSON())
	}
	withSettings(c, set)
	out.Bind(c)
	return c
}

// settingReport is the JSON form of one setting.
type settingReport struct {
	Name   string          `json:"name"`
	Value  string          `json:"value"`
	Source settings.Source `json:"source"`
	Env    []string        `json:"env,omitempty"`
	Key    string          `json:"key,omitempty"`
}

func (m *Main) printSettings(set *settings.Set, c node.Config, asJSON bool) error {
	var reports []settingReport
	for _, st := range set.All() {
		r := settingReport{Name: st.Name, Value: st.Value(), Source: st.Source(), Env: st.Env, Key: st.Key}
		if st.Name == "data-dir" {
			r.Value = c.Data.Dir // the absolute path
		}
		reports = append(reports, r)
	}
	for _, a := range c.Apps {
		value := fmt.Sprintf("%s, port %d, httpPort %d", a.Protocol, a.Port, a.HTTPPort.Number)
		reports = append(reports, settingReport{Name: "apps: " + a.ID, Value: value,
			Source: settings.Source{Kind: "file"}, Key: "apps"})
	}
	if b := c.Backup; b.Directory != "" || len(b.Command) > 0 {
		value := fmt.Sprintf("%s every %s, keep %d, verify %t", cmp.Or(b.Directory, strings.Join(b.Command, " ")),
			b.Every, b.Keep, !b.NoVerify)
		reports = append(reports, settingReport{Name: "backup", Value: value, Source: settings.Source{Kind: "file"},
			Key: "backup"})
	}
	if asJSON {
		return command.WriteJSON(m.Stdout, reports)
	}
	rows := [][]string{{"SETTING", "VALUE", "SOURCE"}}
	for _, r := range reports {
		rows = append(rows, []string{r.Name, command.Dash(r.Value), r.Source.String()})
	}
	return command.Table(m.Stdout, rows)
}

func (m *Main) configValidateCommand() *cobra.Command {
	set, out := settings.New(), command.Output{}
	c := &cobra.Command{
		Use:   "validate [flags]",
		Short: "Check the settings and the component files, and print every problem",
		Long: "Check what run would use, without starting a node: the settings from flags, environment and\n" +
			"file, the files with tokens, certificates and keys, and the component files of --resources-path.",
		Args: cobra.NoArgs,
	}
	c.RunE = func(c *cobra.Command, _ []string) error {
		var v validation
		config, err := m.Resolve(set, c.Flags(), nil)
		v.add(set.Warnings(), errors.Join(set.UnknownVariables(m.Env, backupcmd.KeyEnv)...))
		v.add(nil, err)
		if err == nil {
			v.add(nil, config.Validate())
			v.add(m.Check(c.Context(), config))
		}
		return m.printValidation(v, out.JSON())
	}
	withSettings(c, set)
	out.Bind(c)
	return c
}

// validation is the result of config validate.
type validation struct {
	Valid    bool     `json:"valid"`
	Problems []string `json:"problems"`
	Warnings []string `json:"warnings"`
}

func (v *validation) add(warnings []string, err error) {
	v.Warnings = append(v.Warnings, warnings...)
	if err != nil {
		for _, e := range flatten(err) {
			v.Problems = append(v.Problems, fault.Text(e))
		}
	}
}

func (m *Main) printValidation(v validation, asJSON bool) error {
	v.Valid = len(v.Problems) == 0
	if asJSON {
		v.Problems, v.Warnings = append([]string{}, v.Problems...), append([]string{}, v.Warnings...)
		if err := command.WriteJSON(m.Stdout, v); err != nil {
			return err
		}
	} else {
		for _, w := range v.Warnings {
			fmt.Fprintln(m.Stdout, "warning:", w)
		}
		for _, p := range v.Problems {
			fmt.Fprintln(m.Stdout, "problem:", p)
		}
	}
	if !v.Valid {
		return errors.New(command.Count(len(v.Problems), "problem") + " found")
	}
	if !asJSON {
		_, err := fmt.Fprintln(m.Stdout, "the configuration is valid")
		return err
	}
	return nil
}
