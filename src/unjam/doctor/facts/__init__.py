"""What the doctor knows: plain records without judgement."""
