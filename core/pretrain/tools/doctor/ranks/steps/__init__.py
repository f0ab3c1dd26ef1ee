"""The steps that all ranks take: what each measures, and the judgement of it."""
